// Clocks that stand still, jump, or come back as something else.

#include <gtest/gtest.h>

#include <chrono>
#include <nlohmann/json.hpp>
#include <string>
#include <thread>
#include <vector>

#include "tests/support/core_harness.hpp"
#include "tests/support/kv_worker.hpp"
#include "tests/support/sanitized.hpp"

namespace hotkv::test {
namespace {

constexpr std::uint64_t kHour = 3'600'000;
constexpr std::uint64_t kTenYears = 10 * 365 * 24 * kHour;

class CoreClock : public ::testing::Test {
 protected:
  CoreClock() {
    for (const char* session : {"a", "b", "c"}) {
      EXPECT_TRUE(worker.open(session, 1));
      EXPECT_TRUE(worker.append(session, 1, 20));
      h.now_ms += 10;
    }
  }
  std::size_t live() const { return h.core->contexts().size(); }
  std::uint64_t ended(MissReason reason) const {
    return h.core->status().shards.at(0).counters.ended[static_cast<std::size_t>(reason)];
  }
  std::uint64_t largest_idle_ms() const {
    std::uint64_t largest = 0;
    for (const auto& context : h.core->contexts()) largest = std::max(largest, context.idle_ms);
    return largest;
  }
  void tick() {
    h.core->tick();
    EXPECT_EQ(h.core->verify(), std::nullopt);
  }

  CoreHarness h;
  core::ShardId shard = h.add_shard();
  CoreClient worker{h, shard};
};

// FR-130: while the clock stands still, as over a suspended machine, nothing ages; what has to go
// for others goes in the order of its last use all the same.
TEST_F(CoreClock, ThatStandsStillAgesNothingAndKeepsTheOrderOfUses) {
  for (int count = 0; count < 1000; ++count) tick();
  EXPECT_EQ(live(), 3U);
  ASSERT_TRUE(worker.open("large", 1));
  ASSERT_TRUE(worker.append("large", 1, 64 * 16 - 64));  // all but what two of them have
  EXPECT_TRUE(worker.resolve("a", 1, 20).error().is(MissReason::evicted_lru));
  EXPECT_TRUE(worker.resolve("b", 1, 20).has_value());
  EXPECT_TRUE(worker.resolve("c", 1, 20).has_value());
  tick();
}

// FR-130: a jump far ahead ends what it makes too old, once and with its reason, spares what is
// pinned, and leaves a cache that works.
TEST_F(CoreClock, ThatJumpsAheadEndsWhatIsTooOldOnceAndNothingElse) {
  const auto view = worker.resolve("b", 1, 20).value();
  for (const std::uint64_t jump : {kHour, kTenYears}) {
    h.now_ms += jump;
    for (int count = 0; count < 3; ++count) tick();
    EXPECT_EQ(live(), 1U);
    EXPECT_EQ(ended(MissReason::evicted_ttl), 2U);
  }
  EXPECT_EQ(worker.wrong_bytes("b", 1, view), 0U);
  worker.unpin(view);
  ASSERT_TRUE(worker.open("new", 1));
  ASSERT_TRUE(worker.append("new", 1, 20));
  h.now_ms += h.limits.ttl_ms - 1;
  tick();
  EXPECT_TRUE(worker.resolve("new", 1, 20).has_value());
}

// FR-130: the core's clock never goes back by contract. Should it, by an hour or to 0, nothing
// expires for it, no age wraps, and what was there expires in time once the clock has caught up.
TEST_F(CoreClock, ThatGoesBackExpiresNothing) {
  h.now_ms += 10 * kHour;
  const std::uint64_t before = h.now_ms;
  for (const char* session : {"a", "b", "c"}) ASSERT_TRUE(worker.append(session, 1, 1));
  ASSERT_TRUE(worker.release("c", 1));
  for (const std::uint64_t time : {before - kHour, std::uint64_t{1}, std::uint64_t{0}}) {
    h.now_ms = time;
    tick();
    EXPECT_EQ(live(), 2U) << time;
    EXPECT_EQ(largest_idle_ms(), 0U) << time;
    const auto miss = worker.resolve("c", 1, 21);
    ASSERT_TRUE(miss.error().is(MissReason::released));
    EXPECT_EQ(miss.error().miss().age_ms.value_or(0), 0U) << time;
  }
  EXPECT_EQ(ended(MissReason::evicted_ttl), 0U);
  h.now_ms = before + h.limits.ttl_ms - 1;
  tick();
  EXPECT_EQ(live(), 2U);
  h.now_ms += 1 + 16;  // and a tick of the touch words
  tick();
  EXPECT_EQ(live(), 0U);
}

// FR-130: memory from the future, as of a daemon whose clock ran ahead: times in it are taken as
// now. Everything is there, and expires a whole time to live later, not in ten years.
TEST_F(CoreClock, ThatAKeptArenaIsAheadOfIsTakenAsNow) {
  h.now_ms += kTenYears;
  for (const char* session : {"a", "b", "c"}) ASSERT_TRUE(worker.append(session, 1, 1));
  ASSERT_TRUE(worker.release("c", 1));
  h.now_ms -= kTenYears;
  h.restart();
  tick();
  ASSERT_EQ(live(), 2U);
  EXPECT_EQ(largest_idle_ms(), 0U);
  h.now_ms += h.limits.ttl_ms - 1;
  tick();
  EXPECT_EQ(live(), 2U);
  h.now_ms += 1 + 16;  // and a tick of the touch words
  tick();
  EXPECT_EQ(live(), 0U);
}

}  // namespace
}  // namespace hotkv::test

namespace hotkv::testing {
namespace {

constexpr std::uint64_t kHourMs = 3'600'000;

std::vector<std::string> flags_with_ttl(const std::string& ttl) {
  return {"--max-bytes=16M", "--hugepages=off", "--default-ttl=" + ttl};
}

class WallClock : public ::testing::Test {
 protected:
  void SetUp() override {
    if (kIsSanitized) GTEST_SKIP() << "a sanitizer's runtime has to be loaded first";
  }
  // A daemon to which every reading of the wall clock is another time.
  static DaemonOptions misled(std::vector<std::string> flags) {
    return {.flags = std::move(flags), .variables = {"LD_PRELOAD=" HOTKV_WALL_CLOCK_THAT_JUMPS}};
  }
  static bool has_seen_jumps(const DaemonProcess& daemon) {
    return daemon.err().find("ts=1999") != std::string::npos &&
           daemon.err().find("ts=20") != std::string::npos;
  }
};

// FR-130: the wall clock is for the time stamps of the log and for nothing else: it may be anything
// at any moment, nothing expires early, and no
// stall is seen that was none.
TEST_F(WallClock, MayJumpAtEveryReadingAndNothingExpires) {
  DaemonProcess daemon(misled(flags_with_ttl("1h")));
  ASSERT_TRUE(daemon.wait_ready()) << daemon.err();
  KvWorker worker(daemon.control_path());
  ASSERT_EQ(why(worker.open("s", 1)), "");
  ASSERT_EQ(why(worker.append("s", 20)), "");
  // Over more than a second, in which the daemon looks for what is too old.
  const auto begin = std::chrono::steady_clock::now();
  while (std::chrono::steady_clock::now() - begin < std::chrono::milliseconds(1300)) {
    ASSERT_LT(status_number(daemon, "/uptime_ms"), kHourMs);
    ASSERT_LT(status_number(daemon, "/longest_stall_ms"), kHourMs);
    const auto contexts = admin_page(daemon, "/contexts").at("contexts");
    ASSERT_EQ(contexts.size(), 1U);
    ASSERT_LT(contexts.at(0).at("idle_ms").get<std::uint64_t>(), kHourMs);
    std::this_thread::sleep_for(std::chrono::milliseconds(20));
  }
  const SessionId session = SessionId::from("s").value();
  EXPECT_TRUE(worker.client().resolve(session, Epoch{1}, TokenCount{20}).has_value());
  EXPECT_EQ(daemon.stop(), 0) << daemon.err();
  EXPECT_TRUE(has_seen_jumps(daemon)) << daemon.err();
}

// FR-130: nor late.
TEST_F(WallClock, MayJumpAtEveryReadingAndWhatIsOldExpires) {
  DaemonProcess daemon(misled(flags_with_ttl("200ms")));
  ASSERT_TRUE(daemon.wait_ready()) << daemon.err();
  KvWorker worker(daemon.control_path());
  ASSERT_EQ(why(worker.open("s", 1)), "");
  ASSERT_EQ(why(worker.append("s", 20)), "");
  EXPECT_TRUE(eventually(
      [&] { return status_number(daemon, "/shards/0/counters/contexts_ended/evicted-ttl") == 1; }));
  EXPECT_EQ(daemon.stop(), 0) << daemon.err();
  EXPECT_TRUE(has_seen_jumps(daemon)) << daemon.err();
}

}  // namespace
}  // namespace hotkv::testing
