// `hotkvd --supervise`: what a container has in place of systemd.

#include <gtest/gtest.h>
#include <signal.h>

#include <algorithm>
#include <exception>
#include <filesystem>
#include <fstream>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
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

  // The daemon that answers now, if one does.
  [[nodiscard]] std::optional<pid_t> daemon_pid() const {
    try {
      const auto pid = admin_page(parent_, "/status").at("pid").get<pid_t>();
      if (pid > 1 && pid != parent_.pid()) return pid;
    } catch (const std::exception&) {  // between two of them
    }
    return std::nullopt;
  }
  // One that is not this, once it answers.
  [[nodiscard]] std::optional<pid_t> another_daemon(std::optional<pid_t> than = {}) const {
    std::optional<pid_t> now;
    (void)eventually([&] {
      now = daemon_pid();
      return now && now != than;
    });
    return now == than ? std::nullopt : now;
  }
};

bool is_gone(pid_t pid) {
  std::ifstream file("/proc/" + std::to_string(pid) + "/stat");
  std::string number, name, state;
  return !(file >> number >> name >> state) || state == "Z";  // its new parent may reap late
}

TEST_F(Supervise, KeepsTheMemoryOfADaemonThatIsKilledAndItsWorkerGoesOn) {
  KvWorker worker(parent_.control_path());
  ASSERT_EQ(why(worker.open("a", 1)), "");
  ASSERT_EQ(why(worker.append("a", 50)), "");
  for (std::uint32_t length = 50; length < 70; length += 10) {
    const auto before = another_daemon();
    ASSERT_TRUE(before.has_value());
    ASSERT_EQ(::kill(*before, SIGKILL), 0);
    ASSERT_TRUE(another_daemon(before).has_value()) << parent_.err();
    // As soon as the library is back it is there, byte for byte.
    std::optional<View> view;
    ASSERT_TRUE(eventually([&] {
      auto found =
          worker.client().resolve(SessionId::from("a").value(), Epoch{1}, TokenCount{length});
      if (found) view.emplace(std::move(*found));
      return found.has_value();
    }));
    EXPECT_EQ(wrong_bytes(worker_recipe(), "a", 1, *view), 0U);
    ASSERT_EQ(why(worker.append("a", 10)), "");
  }
  EXPECT_EQ(broken_invariant(parent_), "");
  EXPECT_TRUE(eventually([&] { return admin_page(parent_, "/status").at("restart") == "keeps"; }));
}

TEST_F(Supervise, EndsInOrderWhenItIsToldTo) {
  const auto daemon = another_daemon();
  ASSERT_TRUE(daemon.has_value());
  EXPECT_EQ(parent_.stop(), 0) << parent_.err();
  EXPECT_TRUE(eventually([&] { return is_gone(*daemon); }));
  EXPECT_FALSE(std::filesystem::exists(parent_.control_path()));
}

TEST_F(Supervise, TakesItsDaemonAlongWhenItIsKilled) {
  const auto daemon = another_daemon();
  ASSERT_TRUE(daemon.has_value());
  parent_.kill();
  EXPECT_TRUE(eventually([&] { return !std::filesystem::exists(parent_.control_path()); }));
  EXPECT_TRUE(eventually([&] { return is_gone(*daemon); }));
}

TEST_F(Supervise, GivesUpADaemonThatCrashesAgainAndAgain) {
  std::optional<pid_t> before;
  for (int crash = 0; crash < 8; ++crash) {
    before = another_daemon(before);
    ASSERT_TRUE(before.has_value()) << crash << ": " << parent_.err();
    ::kill(*before, SIGKILL);
  }
  EXPECT_EQ(parent_.wait_exit(), 1);
  EXPECT_NE(parent_.err().find("giving up"), std::string::npos) << parent_.err();
}

// However the flag is written, the child is not a supervisor itself.
TEST(SuperviseFlag, IsNotPassedOn) {
  DaemonProcess parent({.flags = {"--supervise=true", "--max-bytes=16M"}});
  ASSERT_TRUE(parent.wait_ready()) << parent.err();
  const auto pid = admin_page(parent, "/status").at("pid").get<pid_t>();
  std::ifstream file("/proc/" + std::to_string(pid) + "/stat");
  std::string number, name, state;
  pid_t its_parent = 0;
  ASSERT_TRUE(file >> number >> name >> state >> its_parent);
  EXPECT_EQ(its_parent, parent.pid());
}

TEST(SuperviseRefusals, ARefusedConfigurationIsRefusedOnce) {
  const ProgramResult result = run_program("hotkvd", {"--supervise", "--max-bytes=1"});
  EXPECT_EQ(result.exit_code, 2);
  EXPECT_EQ(std::count(result.err.begin(), result.err.end(), '\n'), 1) << result.err;
}

}  // namespace
}  // namespace hotkv::testing
