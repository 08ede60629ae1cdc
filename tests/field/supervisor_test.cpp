// The service manager's side: pings of the watchdog, stalls, one process, a log that is gone.

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sched.h>
#include <signal.h>
#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <fstream>
#include <string>
#include <thread>
#include <vector>

#include "tests/support/processor_time.hpp"
#include "tests/support/raw_client.hpp"
#include "tests/support/sanitized.hpp"
#include "tests/support/under_fire.hpp"

namespace hotkv::testing {
namespace {

using namespace protocol;
using Clock = std::chrono::steady_clock;
using std::chrono::milliseconds;

const std::vector<std::string> kFlags{"--max-bytes=16M", "--hugepages=off", "--chunk-tokens=16"};

// ---- watchdog -----------------------------------------------------------------------------------

DaemonOptions with_watchdog(milliseconds limit, std::vector<std::string> flags = kFlags) {
  return {.flags = std::move(flags),
          .variables = {"WATCHDOG_USEC=" + std::to_string(limit.count() * 1000)}};
}

// FR-127: several pings come within each limit, from the first one on.
TEST(Watchdog, IsPingedSeveralTimesWithinItsLimit) {
  constexpr milliseconds kLimit(600);
  constexpr std::size_t kPings = 7;
  DaemonProcess daemon(with_watchdog(kLimit));
  ASSERT_TRUE(daemon.wait_ready()) << daemon.err();
  const auto begin = Clock::now();
  std::size_t pings = 0;
  ASSERT_TRUE(eventually([&] {
    pings += daemon.notifications("WATCHDOG=1");
    return pings >= kPings;
  }));
  // At a third of the limit seven take 2.3 limits; at the limit itself, which is too late, seven.
  EXPECT_LT(Clock::now() - begin, 5 * kLimit);
  EXPECT_EQ(daemon.stop(), 0) << daemon.err();
}

// FR-127: nobody asks for pings, nobody gets any.
TEST(Watchdog, IsNotPingedWhereThereIsNone) {
  DaemonProcess daemon({.flags = kFlags});
  ASSERT_TRUE(daemon.wait_ready()) << daemon.err();
  ASSERT_TRUE(eventually([&] { return status_number(daemon, "/uptime_ms") > 1100; }));
  EXPECT_EQ(daemon.stop(), 0) << daemon.err();
  EXPECT_EQ(daemon.notifications("WATCHDOG=1"), 0U);
}

// FR-127: pings stop with the loop and come again with it; how long it stood still is shown.
TEST(Watchdog, IsNotPingedWhileTheLoopStandsStillAndTheStallIsShown) {
  constexpr milliseconds kStall(1700);
  DaemonProcess daemon(with_watchdog(milliseconds(300)));
  ASSERT_TRUE(daemon.wait_ready()) << daemon.err();
  ASSERT_TRUE(eventually([&] { return daemon.notifications("WATCHDOG=1") > 0; }));
  daemon.signal(SIGSTOP);
  std::this_thread::sleep_for(milliseconds(100));
  (void)daemon.notifications("");
  std::this_thread::sleep_for(kStall);
  EXPECT_EQ(daemon.notifications("WATCHDOG=1"), 0U);
  daemon.signal(SIGCONT);
  EXPECT_TRUE(eventually([&] { return daemon.notifications("WATCHDOG=1") > 0; }));
  // Some turn of the loop was due within the first second of it.
  EXPECT_TRUE(eventually([&] { return status_number(daemon, "/longest_stall_ms") >= 700; }));
  EXPECT_EQ(daemon.stop(), 0) << daemon.err();
}

// Sessions without a token, 256 in a message. The pings meanwhile are read, as a manager does.
bool open_sessions(const DaemonProcess& daemon, RawClient& client, std::uint32_t count) {
  for (std::uint32_t first = 0; first < count; first += kOperationsMax) {
    std::vector<OpenOperation> operations;
    for (std::uint32_t n = first; n < std::min<std::uint32_t>(first + kOperationsMax, count); ++n) {
      operations.push_back({context_name("session-" + std::to_string(n), 1), {}});
      std::ranges::copy(client.fingerprint(), operations.back().fingerprint);
    }
    const auto results = client.operate(Type::open, operations);
    (void)daemon.notifications("");
    if (results.size() != operations.size() || !std::ranges::all_of(results, is_done)) return false;
  }
  return true;
}

int spin_at_a_better_priority(pid_t parent) {
  ::setpriority(PRIO_PROCESS, 0, -5);  // only root has a better one; else an equal one
  for (unsigned turns = 0;; ++turns) {
    if (turns % 100'000 == 0 && ::getppid() != parent) return 0;
  }
}

// Milliseconds of the loop's processor time that one look at a page takes.
double cost_of(const DaemonProcess& daemon, const std::string& page) {
  const auto before = processor_time_of_first_thread(daemon.pid());
  EXPECT_FALSE(admin_get(daemon, page).empty());
  return milliseconds_of(processor_time_of_first_thread(daemon.pid()) - before);
}

// FR-127: nor does the daemon stop pinging on a starved machine, with a great many sessions, and
// somebody who asks for everything all the time.
TEST(Watchdog, IsPingedByABusyDaemonOnAStarvedMachine) {
  constexpr std::uint32_t kSessions = kIsSanitized ? 5'000 : 100'000;
  constexpr milliseconds kInterval(50);
  constexpr std::size_t kPings = 5;
  DaemonProcess daemon(
      with_watchdog(3 * kInterval, {"--max-bytes=64M", "--hugepages=off", "--session-cap=100000"}));
  ASSERT_TRUE(daemon.wait_ready()) << daemon.err();
  RawClient client = attached_client(daemon.control_path());
  ASSERT_TRUE(open_sessions(daemon, client, kSessions));
  std::printf("with %u sessions the loop takes %.1f ms for /status, %.1f ms for /contexts\n",
              kSessions, cost_of(daemon, "/status"), cost_of(daemon, "/contexts"));
  std::vector<ForkedChild> hogs;
  for (unsigned count = 0; count < std::thread::hardware_concurrency(); ++count) {
    hogs.emplace_back([parent = ::getpid()] { return spin_at_a_better_priority(parent); });
  }
  (void)daemon.notifications("");
  const auto begin = Clock::now();
  std::size_t pings = 0, polls = 0;
  // Fewer pings than this in twenty seconds would be a kill with the shipped unit's thirty.
  EXPECT_TRUE(eventually([&] {
    EXPECT_EQ(status_number(daemon, "/shards/0/contexts"), kSessions);
    EXPECT_FALSE(admin_get(daemon, "/contexts?limit=1000").empty());
    EXPECT_TRUE(is_done(client.explain("session-7", 1, 0)));
    ++polls;
    pings += daemon.notifications("WATCHDOG=1");
    return pings >= kPings && Clock::now() - begin > milliseconds(1500);
  }));
  std::printf("%zu pings in %.0f intervals beside %zu polls; longest stall %.0f ms\n", pings,
              std::chrono::duration<double>(Clock::now() - begin) / kInterval, polls,
              static_cast<double>(status_number(daemon, "/longest_stall_ms")));
  hogs.clear();
  EXPECT_EQ(broken_invariant(daemon), "");
  EXPECT_EQ(daemon.stop(), 0) << daemon.err();
}

// ---- one process --------------------------------------------------------------------------------

std::string children_of(pid_t pid) {
  const std::string number = std::to_string(pid);
  std::ifstream file("/proc/" + number + "/task/" + number + "/children");
  EXPECT_TRUE(file.is_open());
  return {std::istreambuf_iterator<char>(file), {}};
}

class OneProcess : public UnderFire {};

// FR-128: it starts no other process, which a service manager would have to wait for.
TEST_F(OneProcess, IsAllThereIsOfADaemon) {
  EXPECT_TRUE(honest_->goes_on());
  EXPECT_EQ(children_of(daemon_.pid()), "");
  EXPECT_NE(children_of(::getpid()), "");  // the look itself works: it has daemon and worker
}

// ---- log ----------------------------------------------------------------------------------------

// FR-131: whoever reads the daemon's stderr goes away in the middle. Lines are lost and counted,
// nothing else: it serves, and ends in order.
TEST(LogReader, ThatGoesAwayCostsTheDaemonLinesAndNothingElse) {
  int ends[2];
  ASSERT_EQ(::pipe2(ends, O_CLOEXEC), 0);
  UniqueFd reader(ends[0]);
  UniqueFd writer(ends[1]);
  DaemonProcess daemon({.flags = kFlags, .err = writer.get()});
  writer.reset();
  ASSERT_TRUE(daemon.wait_ready());
  std::string text(4096, '\0');
  EXPECT_GT(::read(reader.get(), text.data(), text.size()), 0);
  EXPECT_EQ(status_number(daemon, "/log_lines_lost"), 0U);
  reader.reset();
  RawClient client = attached_client(daemon.control_path());
  for (int count = 0; count < 3; ++count) client.ask(Bytes(3));  // which is logged
  EXPECT_TRUE(eventually([&] { return status_number(daemon, "/log_lines_lost") > 0; }));
  EXPECT_TRUE(is_done(client.open("session", 1)));
  daemon.signal(SIGHUP);  // logged too
  EXPECT_TRUE(is_done(client.explain("session", 1, 0)));
  EXPECT_EQ(broken_invariant(daemon), "");
  EXPECT_EQ(daemon.stop(), 0);
}

}  // namespace
}  // namespace hotkv::testing
