// Who a peer is: processes without a pid here, other users, leftovers.

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sched.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <filesystem>
#include <string>

#include "shared/seqpacket.hpp"
#include "tests/hostile/conversation.hpp"
#include "tests/support/under_fire.hpp"

namespace hotkv::testing {
namespace {

namespace fs = std::filesystem;

// The daemon as the first process of a pid namespace: to it, everybody else has pid 0.
class DaemonWithoutPids {
 public:
  DaemonWithoutPids() : child_([this] { return run(); }) {}
  [[nodiscard]] std::string control_path() const { return folder_.path() / "control.sock"; }
  [[nodiscard]] std::string admin_path() const { return folder_.path() / "admin.sock"; }
  [[nodiscard]] bool is_ready() const {
    return eventually([&] { return fs::exists(admin_path()); });
  }
  [[nodiscard]] std::string page(const std::string& target) const {
    return exchange_text(admin_path(), "GET " + target + " HTTP/1.0\r\n\r\n");
  }

 private:
  int run() const {
    if (::unshare(CLONE_NEWPID) != 0) return 1;
    ForkedChild daemon([&] {
      ::prctl(PR_SET_PDEATHSIG, SIGKILL);
      const std::string program = std::string(HOTKV_BINARY_FOLDER) + "/hotkvd";
      const std::string control = "--socket=" + control_path();
      const std::string admin = "--admin-socket=" + admin_path();
      ::execl(program.c_str(), program.c_str(), control.c_str(), admin.c_str(), "--max-bytes=16M",
              "--hugepages=off", "--log-level=error", nullptr);
      return 1;
    });
    return daemon.exit_code();
  }

  TemporaryDirectory folder_;
  ForkedChild child_;
};

// FR-089: a pid that means nothing tells nobody apart; connections do.
TEST(Peers, WithoutAPidHereAreToldApartByTheirConnections) {
  if (::geteuid() != 0) GTEST_SKIP() << "needs root to make a pid namespace";
  const DaemonWithoutPids daemon;
  if (!daemon.is_ready()) GTEST_SKIP() << "cannot make a pid namespace here";
  const auto attach = [&] {
    RawClient client(daemon.control_path());
    (void)client.hello();
    client.stay_alive(client.attach(small_recipe(), Access::write));
    return client;
  };
  RawClient first = attach();
  RawClient second = attach();
  ASSERT_TRUE(is_done(first.open("session", 1)));
  const RawReply busy = second.ask(right_frame(protocol::Type::open, small_recipe(), "session", 0));
  ASSERT_EQ(busy.results().size(), 1U);
  EXPECT_TRUE(is_error(busy.results().front(), ErrorCode::session_busy));
  EXPECT_NE(busy.text.find("pid unknown"), std::string::npos) << busy.text;
  EXPECT_NE(daemon.page("/contexts").find("\"pid\": null"), std::string::npos);
  // Its end is known by its connection and its page.
  { const RawClient gone = std::move(first); }
  EXPECT_TRUE(eventually([&] { return is_done(second.open("session", 1)); }));
}

class OtherPeers : public UnderFire {};

// FR-094: neither the operator's pages nor the daemon's memory by way of /proc.
TEST_F(OtherPeers, OfAnotherUserSeeNothingOfTheDaemons) {
  if (::geteuid() != 0) GTEST_SKIP() << "needs root to become another user";
  const RawClient ours = attached_client(daemon_);
  const fs::path folder = fs::path(daemon_.admin_path()).parent_path();
  ASSERT_EQ(::chmod(folder.c_str(), 0755), 0);
  const auto address = socket_address(daemon_.admin_path());
  const std::string descriptors = "/proc/" + std::to_string(daemon_.pid()) + "/fd";
  const std::string memory = "/proc/" + std::to_string(daemon_.pid()) + "/mem";
  ForkedChild stranger([&] {
    constexpr uid_t kStranger = 12345;
    if (::setresgid(kStranger, kStranger, kStranger) != 0 ||
        ::setresuid(kStranger, kStranger, kStranger) != 0) {
      return 1;
    }
    const UniqueFd fd(::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0));
    const auto* generic = reinterpret_cast<const sockaddr*>(&*address);
    if (::connect(fd.get(), generic, sizeof *address) == 0 || errno != EACCES) return 2;
    if (::open(descriptors.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC) >= 0) return 3;
    return ::open(memory.c_str(), O_RDONLY | O_CLOEXEC) < 0 ? 0 : 4;
  });
  EXPECT_EQ(stranger.exit_code(), 0);
}

// FR-091: workers make no files, so those that are killed leave none.
TEST_F(OtherPeers, ThatAreKilledLeaveNoFiles) {
  const fs::path folder = fs::path(daemon_.control_path()).parent_path();
  const auto files = [&] {
    return std::distance(fs::directory_iterator(folder), fs::directory_iterator());
  };
  const auto before = files();
  for (int round = 0; round < 20; ++round) {
    Turns turns;
    ForkedChild worker([&] {
      KvWorker killed(daemon_.control_path());
      if (!killed.open("session", 1) || !killed.append("session", 20)) return 1;
      turns.arrive_and_wait();
      return 0;
    });
    ASSERT_TRUE(turns.wait_for_child());
    worker.kill_and_wait();
  }
  EXPECT_EQ(files(), before);
}

}  // namespace
}  // namespace hotkv::testing
