#pragma once
// A child process of another user, which can reach the daemon's control socket and nothing more.

#include <grp.h>
#include <sys/stat.h>
#include <unistd.h>

#include <optional>
#include <string>

#include "tests/support/daemon_process.hpp"
#include "tests/support/forked_child.hpp"

namespace hotkv::testing {

inline constexpr uid_t kStranger = 12345;

// The exit code of a child of `uid` that ran `body`; nothing where this user cannot make one.
template <class Body>
[[nodiscard]] std::optional<int> as_user(const DaemonProcess& daemon, uid_t uid, Body body) {
  if (::geteuid() != 0) return std::nullopt;
  const std::string& path = daemon.control_path();
  ::chmod(path.c_str(), 0666);
  ::chmod(path.substr(0, path.rfind('/')).c_str(), 0755);
  ForkedChild child([&] {
    if (::setgroups(0, nullptr) != 0 || ::setresgid(uid, uid, uid) != 0 ||
        ::setresuid(uid, uid, uid) != 0) {
      return 99;
    }
    return body();
  });
  return child.exit_code();
}

}  // namespace hotkv::testing
