#include "daemon/platform/peer.hpp"

#include <sys/socket.h>

namespace hotkv::platform {

std::expected<PeerCredentials, Error> peer_credentials(int socket_fd) {
  ucred credentials{};
  socklen_t size = sizeof credentials;
  if (::getsockopt(socket_fd, SOL_SOCKET, SO_PEERCRED, &credentials, &size) != 0) {
    return std::unexpected(system_error("SO_PEERCRED", "connection"));
  }
  return PeerCredentials{credentials.uid, credentials.gid, credentials.pid};
}

}  // namespace hotkv::platform
