#include "daemon/effective_limits.hpp"

#include <algorithm>
#include <charconv>
#include <fstream>
#include <string>
#include <string_view>
#include <utility>

#include "daemon/human_units.hpp"

namespace hotkv {
namespace {

namespace fs = std::filesystem;

std::string first_line_with(const fs::path& path, std::string_view start) {
  std::ifstream file(path);
  for (std::string line; std::getline(file, line);) {
    if (line.starts_with(start)) return line;
  }
  return {};
}

// The first number in a text; 0 where there is none ("max").
std::uint64_t number_in(std::string_view text) {
  const std::size_t digit = text.find_first_of("0123456789");
  if (digit == std::string_view::npos) return 0;
  std::uint64_t value = 0;
  std::from_chars(text.data() + digit, text.data() + text.size(), value);
  return value;
}

// The least limit of a cgroup and those above it. `limit_file` in each; 0 = none has one.
std::uint64_t least_limit(fs::path group, const fs::path& mount_point, const char* limit_file) {
  std::uint64_t least = 0;
  for (;; group = group.parent_path()) {
    const std::uint64_t limit = number_in(first_line_with(group / limit_file, ""));
    if (limit != 0 && (least == 0 || limit < least)) least = limit;
    if (group == mount_point || !group.has_relative_path()) return least;
  }
}

// Lines of /proc/self/cgroup are id:controllers:path; version 2 has id 0 and no controllers.
std::uint64_t cgroup_limit(const fs::path& root) {
  std::ifstream file(root / "proc/self/cgroup");
  std::uint64_t least = 0;
  for (std::string line; std::getline(file, line);) {
    const std::size_t path_at = line.find(":/");
    if (path_at == std::string::npos) continue;
    const bool is_version2 = line.starts_with("0::");
    if (!is_version2 && line.find(":memory:") == std::string::npos) continue;
    const fs::path mount_point = root / (is_version2 ? "sys/fs/cgroup" : "sys/fs/cgroup/memory");
    const fs::path relative = line.substr(path_at + 2);
    const std::uint64_t limit =
        least_limit(relative.empty() ? mount_point : mount_point / relative, mount_point,
                    is_version2 ? "memory.max" : "memory.limit_in_bytes");
    if (limit != 0 && (least == 0 || limit < least)) least = limit;
  }
  return least;
}

// The kernel shows all modes and marks the one in force: "always within_size [advise] never".
std::string marked_word(const std::string& line) {
  const std::size_t open = line.find('[');
  const std::size_t close = line.find(']');
  if (open == std::string::npos || close == std::string::npos || close < open) return {};
  return line.substr(open + 1, close - open - 1);
}

// "advise" is not among them: memory is provisioned by fallocate, which no advice on a mapping
// reaches, so the pages would be small ones, and saying otherwise would be a lie.
bool lets_huge_pages(std::string_view mode) {
  return mode == "always" || mode == "within_size" || mode == "force";
}

Error refusal(const char* key, std::string cause) {
  return {ErrorCode::configuration_error, "configure", key, std::move(cause), 0};
}

// Settings that contradict what this machine is would be found out hours later: by appends that are
// all refused, or by a bound that binds nothing.
std::expected<std::uint64_t, Error> budget_bytes(const Config& config, const MachineFacts& facts) {
  if (facts.memory_bytes == 0) {
    if (config.max_bytes) return *config.max_bytes;
    return std::unexpected(refusal("max_bytes", "the machine's memory is not known; set a size"));
  }
  const bool has_limit =
      facts.cgroup_limit_bytes != 0 && facts.cgroup_limit_bytes < facts.memory_bytes;
  const std::uint64_t there_is = has_limit ? facts.cgroup_limit_bytes : facts.memory_bytes;
  const auto beyond = [&](std::uint64_t bytes) {
    return format_size_bytes(bytes) + ", but " + (has_limit ? "its cgroup" : "this machine") +
           " has " + format_size_bytes(there_is);
  };
  if (config.memory_reserve_bytes >= facts.memory_bytes) {
    return std::unexpected(refusal("memory_reserve", beyond(config.memory_reserve_bytes)));
  }
  if (!config.max_bytes) return there_is / 2;
  if (*config.max_bytes > there_is) {
    return std::unexpected(refusal("max_bytes", beyond(*config.max_bytes)));
  }
  return *config.max_bytes;
}

}  // namespace

MachineFacts read_machine_facts(const fs::path& root) {
  return {
      number_in(first_line_with(root / "proc/meminfo", "MemTotal:")) * 1024, cgroup_limit(root),
      marked_word(first_line_with(root / "sys/kernel/mm/transparent_hugepage/shmem_enabled", ""))};
}

std::expected<core::Limits, Error> effective_limits(const Config& config,
                                                    const MachineFacts& facts) {
  core::Limits limits;
  const auto budget = budget_bytes(config, facts);
  if (!budget) return std::unexpected(budget.error());
  limits.max_bytes = *budget;
  if (config.max_bytes_per_owner.value_or(0) > limits.max_bytes) {
    return std::unexpected(refusal("max_bytes_per_owner",
                                   "one owner would have " +
                                       format_size_bytes(*config.max_bytes_per_owner) +
                                       ", all together " + format_size_bytes(limits.max_bytes)));
  }
  limits.huge_pages = config.hugepages != HugePages::off && lets_huge_pages(facts.shmem_huge_pages);
  if (config.hugepages == HugePages::require && !limits.huge_pages) {
    return std::unexpected(refusal(
        "hugepages", "required, but /sys/kernel/mm/transparent_hugepage/shmem_enabled is \"" +
                         facts.shmem_huge_pages + "\"; it must be within_size or always"));
  }
  limits.max_bytes_per_owner = config.max_bytes_per_owner.value_or(0);
  limits.session_cap = config.session_cap;
  limits.ttl_ms = config.default_ttl ? static_cast<std::uint64_t>(config.default_ttl->count()) : 0;
  limits.tombstone_ttl_ms = static_cast<std::uint64_t>(config.tombstone_ttl.count());
  limits.tombstones = config.tombstones;
  limits.max_shards = config.max_shards;
  limits.max_shards_per_owner = config.max_shards_per_owner;
  limits.clients_per_shard = config.clients_per_shard;
  limits.chunk_tokens = config.chunk_tokens.value_or(0);
  return limits;
}

}  // namespace hotkv
