// Another user of the machine: what it can reach of the daemon and of somebody else's clients.

#include <fcntl.h>
#include <grp.h>
#include <gtest/gtest.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <unistd.h>

#include <cerrno>
#include <string>

#include "shared/seqpacket.hpp"
#include "tests/support/other_user.hpp"
#include "tests/support/raw_client.hpp"
#include "tests/support/under_fire.hpp"

namespace hotkv::testing {
namespace {

constexpr uid_t kVictim = kStranger + 1;

bool become(uid_t uid, gid_t gid) {
  return ::setgroups(0, nullptr) == 0 && ::setresgid(gid, gid, gid) == 0 &&
         ::setresuid(uid, uid, uid) == 0;
}

// What of a process somebody gets hold of: a descriptor by /proc or by the call for it, or its
// memory. Empty: nothing.
std::string reach(pid_t pid, int descriptors) {
  const std::string process = "/proc/" + std::to_string(pid);
  for (int fd = 0; fd < descriptors; ++fd) {
    const std::string path = process + "/fd/" + std::to_string(fd);
    for (const int flags : {O_RDONLY, O_RDWR, O_PATH}) {
      if (UniqueFd(::open(path.c_str(), flags | O_CLOEXEC | O_NONBLOCK))) return path;
      if (errno != EACCES) return path + ": " + std::to_string(errno);
    }
  }
  const UniqueFd pidfd(static_cast<int>(::syscall(SYS_pidfd_open, pid, 0)));
  for (int fd = 0; fd < descriptors; ++fd) {
    if (UniqueFd(static_cast<int>(::syscall(SYS_pidfd_getfd, pidfd.get(), fd, 0)))) {
      return "pidfd_getfd";
    }
    if (errno != EPERM) return "pidfd_getfd: " + std::to_string(errno);
  }
  for (const char* place : {"/mem", "/map_files", "/maps", "/environ"}) {
    if (UniqueFd(::open((process + place).c_str(), O_RDONLY | O_CLOEXEC))) return process + place;
  }
  char byte = 0;
  iovec here{&byte, 1};
  iovec there{&byte, 1};  // forked children have it at the same place
  if (::process_vm_readv(pid, &here, 1, &there, 1, 0) == 1) return "process_vm_readv";
  return {};
}

// A descriptor or two below this are open in each of them.
constexpr int kDescriptors = 32;

class OtherUser : public UnderFire {
 protected:
  void SetUp() override {
    UnderFire::SetUp();
    if (::geteuid() != 0) GTEST_SKIP() << "needs root to become other users";
  }
};

// Neither the daemon's descriptors and memory nor a client's of a third user; a process of that
// user's own gets at them, so the look itself works.
TEST_F(OtherUser, ReachesNoDescriptorAndNoMemoryOfDaemonAndClients) {
  Turns turns;
  ::chmod(daemon_.control_path().c_str(), 0666);
  ::chmod(daemon_.control_path().substr(0, daemon_.control_path().rfind('/')).c_str(), 0755);
  ForkedChild victim([&] {
    if (!become(kVictim, kVictim)) return 1;
    ::prctl(PR_SET_DUMPABLE, 1);  // as a program that its user has started himself
    KvWorker worker(daemon_.control_path());
    if (!worker.open("secret", 1) || !worker.append("secret", 20)) return 2;
    turns.arrive_and_wait();
    return 0;
  });
  ASSERT_TRUE(turns.wait_for_child()) << victim.exit_code();
  const auto seen_by = [&](uid_t uid, pid_t pid) {
    return as_user(daemon_, uid, [&] {
      const std::string reached = reach(pid, kDescriptors);
      if (reached.empty()) return 0;
      if (uid == kStranger) std::fprintf(stderr, "reached %s\n", reached.c_str());
      return 1;
    });
  };
  EXPECT_EQ(seen_by(kStranger, daemon_.pid()), 0);
  EXPECT_EQ(seen_by(kStranger, victim.pid()), 0);
  EXPECT_EQ(seen_by(kVictim, victim.pid()), 1);
  EXPECT_EQ(seen_by(kVictim, daemon_.pid()), 0);
  turns.go_on();
  EXPECT_EQ(victim.exit_code(), 0);
}

// As the daemon made it, the control socket lets in its own user and the members of its group.
TEST_F(OtherUser, IsLetInByTheControlSocketOnlyAsAMemberOfItsGroup) {
  const std::string& path = daemon_.control_path();
  ::chmod(path.substr(0, path.rfind('/')).c_str(), 0711);
  constexpr gid_t kGroup = 23456;
  ASSERT_EQ(::chown(path.c_str(), static_cast<uid_t>(-1), kGroup), 0);
  const auto connects = [&](gid_t gid) {
    ForkedChild child([&] {
      if (!become(kStranger, gid)) return 1;
      const UniqueFd fd(::socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0));
      const auto address = socket_address(path);
      if (::connect(fd.get(), reinterpret_cast<const sockaddr*>(&*address), sizeof *address) == 0) {
        return 2;
      }
      return errno == EACCES ? 3 : 4;
    });
    return child.exit_code();
  };
  EXPECT_EQ(connects(kStranger), 3);
  EXPECT_EQ(connects(kGroup), 2);
}

}  // namespace
}  // namespace hotkv::testing
