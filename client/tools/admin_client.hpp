#pragma once
// The operator's end of the admin socket.

#include <chrono>
#include <expected>
#include <string>
#include <string_view>

#include <hotkv/error.hpp>

namespace hotkv::tools {

struct AdminReply {
  unsigned status = 0;  // of HTTP
  std::string body;     // JSON
};

// $XDG_RUNTIME_DIR/hotkv/admin.sock for an ordinary user that has one, else /run/hotkv/admin.sock:
// where a daemon of the same user listens by default.
[[nodiscard]] std::string default_admin_socket();

// GET `target`, waiting no longer than `timeout` altogether.
// Errors: daemon_unavailable, deadline_exceeded, access_denied, protocol_error, invalid_argument
// (the path); each names the path.
[[nodiscard]] std::expected<AdminReply, Error> admin_get(
    const std::string& socket_path, std::string_view target,
    std::chrono::milliseconds timeout = std::chrono::seconds(5));

// Every byte that is not a letter, a digit or one of "-._~" as %XX.
[[nodiscard]] std::string percent_encoded(std::string_view bytes);

}  // namespace hotkv::tools
