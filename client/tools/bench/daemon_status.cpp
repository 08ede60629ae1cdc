#include "client/tools/bench/daemon_status.hpp"

#include <nlohmann/json.hpp>

namespace hotkv::bench {

std::expected<nlohmann::json, Error> status_of(const PrivateDaemon& daemon) {
  const auto body = daemon.status();
  if (!body) return std::unexpected(body.error());
  auto status = nlohmann::json::parse(*body, nullptr, false);
  if (status.is_object()) return status;
  return std::unexpected(
      Error{ErrorCode::protocol_error, "read", "/status", "it is no JSON object"});
}

}  // namespace hotkv::bench
