#include "tests/support/small_daemon.hpp"

#include <algorithm>
#include <fstream>
#include <nlohmann/json.hpp>

namespace hotkv::testing {
namespace {

std::vector<std::string> with_defaults(std::vector<std::string> flags) {
  for (const std::string flag : {"--max-bytes=256K", "--hugepages=off", "--chunk-tokens=16"}) {
    const std::string name = flag.substr(0, flag.find('=') + 1);
    const bool is_given = std::ranges::any_of(
        flags, [&](const std::string& given) { return given.starts_with(name); });
    if (!is_given) flags.push_back(flag);
  }
  return flags;
}

std::size_t count_contexts(const DaemonProcess& daemon,
                           const std::function<bool(const nlohmann::json&)>& is_wanted) {
  const nlohmann::json contexts = admin_page(daemon, "/contexts?limit=10000").at("contexts");
  return static_cast<std::size_t>(std::ranges::count_if(contexts, is_wanted));
}

}  // namespace

SmallDaemon::SmallDaemon(const std::vector<std::string>& flags)
    : daemon_({.flags = with_defaults(flags)}) {}

std::uint64_t SmallDaemon::shard_number(const std::string& place) const {
  const nlohmann::json shard = shard_status(daemon_, worker_recipe().fields().model_id);
  if (shard.is_null()) return 0;
  return shard.value(nlohmann::json::json_pointer(place), std::uint64_t{0});
}

std::size_t SmallDaemon::pinned_contexts() const {
  return count_contexts(daemon_, [](const auto& context) { return context.at("pinned") == true; });
}

std::size_t SmallDaemon::leased_contexts() const {
  return count_contexts(daemon_,
                        [](const auto& context) { return !context.at("lease").is_null(); });
}

std::string SmallDaemon::whole_budget_refusal(KvWorker& worker) const {
  const auto budget = status_number(daemon_, "/limits/max_bytes");
  const auto tokens = static_cast<std::uint32_t>(budget / kChunkBytes) * kChunkTokens;
  if (const auto opened = worker.open("whole budget", 1); !opened) return why(opened);
  return why(worker.append("whole budget", tokens));
}

std::uint64_t process_bytes(pid_t pid, const std::string& name) {
  std::ifstream status("/proc/" + std::to_string(pid) + "/status");
  for (std::string line; std::getline(status, line);) {
    if (line.starts_with(name + ":")) return std::stoull(line.substr(name.size() + 1)) * 1024;
  }
  return 0;
}

}  // namespace hotkv::testing
