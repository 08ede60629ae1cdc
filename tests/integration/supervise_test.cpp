// `hotkvd --supervise`: what a container has in place of systemd.

#include <gtest/gtest.h>
#include <signal.h>

#include <algorithm>
#include <exception>
#include <filesystem>
#include <fstream>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>

#include "tests/support/kv_worker.hpp"

namespace hotkv::testing {
namespace {

class Supervise : public ::testing::Test {
 protected:
  // DaemonProcess's process is the parent; the daemon is its child.
  DaemonProcess parent_{
      {.flags = {"--supervise", "--max-bytes=16M", "--hugepages=off", "--chunk-tokens=16"}}};

  void SetUp() override { ASSERT_TRUE(parent_.wait_ready()) << parent_.err(); }

  [[nodiscard]] pid_t daemon_pid() const {
    try {
      return admin_page(parent_, "/status").at("pid").get<pid_t>();
    } catch (const std::exception&) {
      return -1;  // between two of them
    }
  }
  // Another process than this answers.
  [[nodiscard]] bool is_started_anew(pid_t before) const {
    return eventually([&] {
      const pid_t now = daemon_pid();
      return now > 0 && now != before;
    });
  }
};

TEST_F(Supervise, KeepsTheMemoryOfADaemonThatIsKilledAndItsWorkerGoesOn) {
  KvWorker worker(parent_.control_path());
  ASSERT_EQ(why(worker.open("a", 1)), "");
  ASSERT_EQ(why(worker.append("a", 50)), "");
  for (std::uint32_t length = 50; length < 70; length += 10) {
    const pid_t before = daemon_pid();
    ASSERT_NE(before, parent_.pid());
    ASSERT_EQ(::kill(before, SIGKILL), 0);
    ASSERT_TRUE(eventually([&] { return !worker.client().is_connected(); }));
    ASSERT_TRUE(worker.client().wait_connected(std::chrono::seconds(20)));
    const auto view =
        worker.client().resolve(SessionId::from("a").value(), Epoch{1}, TokenCount{length});
    ASSERT_TRUE(view.has_value()) << view.error().message();
    EXPECT_EQ(wrong_bytes(worker_recipe(), "a", 1, *view), 0U);
    ASSERT_EQ(why(worker.append("a", 10)), "");
  }
  EXPECT_EQ(broken_invariant(parent_), "");
  EXPECT_EQ(admin_page(parent_, "/status").at("restart"), "unknown");  // within its first second
  EXPECT_TRUE(eventually([&] { return admin_page(parent_, "/status").at("restart") == "keeps"; }));
}

TEST_F(Supervise, EndsInOrderWhenItIsToldTo) {
  const pid_t daemon = daemon_pid();
  EXPECT_EQ(parent_.stop(), 0) << parent_.err();
  EXPECT_TRUE(eventually([&] { return ::kill(daemon, 0) != 0; }));
  EXPECT_FALSE(std::filesystem::exists(parent_.control_path()));
}

TEST_F(Supervise, TakesItsDaemonAlongWhenItIsKilled) {
  const pid_t daemon = daemon_pid();
  parent_.kill();
  EXPECT_TRUE(eventually([&] { return !std::filesystem::exists(parent_.control_path()); }));
  EXPECT_TRUE(eventually([&] {
    std::ifstream stat("/proc/" + std::to_string(daemon) + "/comm");
    return !stat.is_open();
  }));
}

TEST_F(Supervise, GivesUpADaemonThatCrashesAgainAndAgain) {
  pid_t before = -1;
  for (int crash = 0; crash < 8; ++crash) {
    ASSERT_TRUE(is_started_anew(before)) << crash << ": " << parent_.err();
    before = daemon_pid();
    ::kill(before, SIGKILL);
  }
  EXPECT_EQ(parent_.wait_exit(), 1);
  EXPECT_NE(parent_.err().find("giving up"), std::string::npos) << parent_.err();
}

TEST(SuperviseRefusals, ARefusedConfigurationIsRefusedOnce) {
  const ProgramResult result = run_program("hotkvd", {"--supervise", "--max-bytes=1"});
  EXPECT_EQ(result.exit_code, 2);
  EXPECT_EQ(std::count(result.err.begin(), result.err.end(), '\n'), 1) << result.err;
}

}  // namespace
}  // namespace hotkv::testing
