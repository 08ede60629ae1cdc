#include "client/tools/bench/daemon_status.hpp"

#include <algorithm>
#include <chrono>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <nlohmann/json.hpp>
#include <string>
#include <thread>

namespace hotkv::bench {

namespace {

std::expected<nlohmann::json, Error> object_in(const std::expected<std::string, Error>& body,
                                               const char* page) {
  if (!body) return std::unexpected(body.error());
  auto object = nlohmann::json::parse(*body, nullptr, false);
  if (object.is_object()) return object;
  return std::unexpected(Error{ErrorCode::protocol_error, "read", page, "it is no JSON object"});
}

std::optional<std::uint64_t> descriptors_now(pid_t pid) {
  std::error_code failure;
  const std::filesystem::directory_iterator entries("/proc/" + std::to_string(pid) + "/fd",
                                                    failure);
  if (failure) return std::nullopt;
  return static_cast<std::uint64_t>(std::distance(begin(entries), end(entries)));
}

}  // namespace

std::expected<nlohmann::json, Error> status_of(const PrivateDaemon& daemon) {
  return object_in(daemon.status(), "/status");
}

std::expected<nlohmann::json, Error> contexts_of(const PrivateDaemon& daemon) {
  return object_in(daemon.contexts(), "/contexts");
}

std::expected<bool, Error> is_sound(const PrivateDaemon& daemon) {
  const auto verdict = object_in(daemon.verify(), "/verify");
  if (!verdict) return std::unexpected(verdict.error());
  return verdict->value("sound", false);
}

std::uint64_t own_bytes_of(const PrivateDaemon& daemon) {
  std::ifstream status("/proc/" + std::to_string(daemon.pid()) + "/status");
  for (std::string word; status >> word;) {
    std::uint64_t kib = 0;
    if (word == "RssAnon:" && status >> kib) return kib * 1024;
  }
  return 0;
}

std::optional<std::uint64_t> descriptors_of(const PrivateDaemon& daemon) {
  constexpr int kLooks = 20;
  auto fewest = descriptors_now(daemon.pid());
  for (int i = 1; i < kLooks && fewest; ++i) {
    std::this_thread::sleep_for(std::chrono::milliseconds(10));
    fewest = std::min(fewest, descriptors_now(daemon.pid()));
  }
  return fewest;
}

}  // namespace hotkv::bench
