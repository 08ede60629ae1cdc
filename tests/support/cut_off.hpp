#pragma once
// A worker that loses its control socket and lives on.

#include <dirent.h>
#include <sys/socket.h>

#include <chrono>
#include <cstdlib>
#include <string>
#include <vector>

#include "tests/support/kv_worker.hpp"

namespace hotkv::testing {

// The control connections of this process.
[[nodiscard]] inline std::vector<int> control_sockets() {
  DIR* folder = ::opendir("/proc/self/fd");
  std::vector<int> sockets;
  while (const dirent* entry = ::readdir(folder)) {
    const int fd = std::atoi(entry->d_name);
    int type = 0;
    socklen_t size = sizeof type;
    if (fd > 2 && ::getsockopt(fd, SOL_SOCKET, SO_TYPE, &type, &size) == 0 &&
        type == SOCK_SEQPACKET) {
      sockets.push_back(fd);
    }
  }
  ::closedir(folder);
  return sockets;
}

inline void hang_up_all() {
  for (const int fd : control_sockets()) ::shutdown(fd, SHUT_RDWR);
}

// After a hang-up its library would come back at once otherwise, and it would be the holder again.
[[nodiscard]] inline KvWorker worker_that_stays_away(const std::string& control_path) {
  return KvWorker(
      Client::attach({.socket_path = control_path, .reattach_for = std::chrono::milliseconds(0)},
                     worker_recipe())
          .value());
}

}  // namespace hotkv::testing
