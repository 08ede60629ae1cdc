#include "client/tools/bench/daemon_status.hpp"

#include <nlohmann/json.hpp>

namespace hotkv::bench {

namespace {

std::expected<nlohmann::json, Error> object_in(const std::expected<std::string, Error>& body,
                                               const char* page) {
  if (!body) return std::unexpected(body.error());
  auto object = nlohmann::json::parse(*body, nullptr, false);
  if (object.is_object()) return object;
  return std::unexpected(Error{ErrorCode::protocol_error, "read", page, "it is no JSON object"});
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

}  // namespace hotkv::bench
