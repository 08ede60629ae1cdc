#include "client/library/socket_path.hpp"

#include <unistd.h>

#include <cstdlib>

namespace hotkv::client {

std::string default_socket_path() {
  // secure_getenv: a program that runs with another user's rights does not follow the caller's
  // wish.
  if (const char* path = ::secure_getenv("HOTKV_SOCKET"); path != nullptr && *path != '\0') {
    return path;
  }
  const char* runtime = ::secure_getenv("XDG_RUNTIME_DIR");
  if (::geteuid() != 0 && runtime != nullptr && *runtime == '/') {
    std::string path = std::string(runtime) + "/hotkv/control.sock";
    if (::access(path.c_str(), F_OK) == 0) return path;
  }
  return "/run/hotkv/control.sock";
}

}  // namespace hotkv::client
