#pragma once
// Who is at the other end of a connection.

#include <sys/types.h>

#include <expected>

#include <hotkv/error.hpp>

namespace hotkv::platform {

// As the kernel recorded it when the connection was made. `uid` decides what the peer may see.
// `pid` is for people only and 0 where the peer's pid means nothing here (another pid namespace):
// show it as unknown, and never use it as a key or send it a signal; kill(0) ends our own group.
struct PeerCredentials {
  uid_t uid = 0;
  gid_t gid = 0;
  pid_t pid = 0;
};

// Errors: system_error.
[[nodiscard]] std::expected<PeerCredentials, Error> peer_credentials(int socket_fd);

}  // namespace hotkv::platform
