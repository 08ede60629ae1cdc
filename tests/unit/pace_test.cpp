#include "daemon/server/pace.hpp"

#include <gtest/gtest.h>

#include <chrono>

namespace hotkv::server {
namespace {

using namespace std::chrono_literals;
using Duration = Pace::Clock::duration;
using Time = Pace::Clock::time_point;

constexpr Time kBegin{1h};

// A connection that always has a next frame, each of which takes `frame`; as it is read: one frame
// after each rest, however much is owed. Returns what it had of the loop's time in a minute.
Duration taken_in_a_minute(Duration frame) {
  Pace pace;
  Duration taken{0};
  for (Time now = kBegin; now < kBegin + 60s;) {
    const bool rests = pace.is_used_up(now);
    pace.charge(now, now + frame);
    now += frame;
    taken += frame;
    if (rests) now += Pace::kRest;
  }
  return taken;
}

TEST(Pace, WhatIsTakenAtOnceIsNotHeldBackUntilItIsALot) {
  Pace pace;
  Time now = kBegin;
  // At full speed time pays for a part of it: 32 ms at once and one part in 16 of what passes.
  while (!pace.is_used_up(now)) {
    pace.charge(now, now + 10us);
    now += 10us;
  }
  EXPECT_GT(now - kBegin, Pace::kAtOnce);
  EXPECT_LT(now - kBegin, Pace::kAtOnce + Pace::kAtOnce / 10);
}

TEST(Pace, InTheLongRunItIsOnePartInSixteen) {
  const Duration share = 60000ms / Pace::kShare;
  for (const Duration frame : {Duration(5us), Duration(10us), Duration(100us)}) {
    EXPECT_GT(taken_in_a_minute(frame), share - Pace::kAtOnce) << frame.count();
    EXPECT_LT(taken_in_a_minute(frame), share + 2 * Pace::kAtOnce) << frame.count();
  }
}

TEST(Pace, OfFramesThatTakeLongItIsOneARest) {
  EXPECT_LT(taken_in_a_minute(1ms), 60000ms / 3 + 2 * Pace::kAtOnce);
  EXPECT_GT(taken_in_a_minute(1ms), 60000ms / 4);
}

TEST(Pace, TimeThatPassesPaysForAsMuchAsCanBeTakenAtOnceAndNoMore) {
  Pace pace;
  const auto take = [&pace](Time from, Duration all) {
    for (Duration taken{0}; taken < all; taken += 1ms) pace.charge(from, from + 1ms);
  };
  take(kBegin, 2 * Pace::kAtOnce);
  EXPECT_TRUE(pace.is_used_up(kBegin + 1ms));
  const Time later = kBegin + 1h;
  EXPECT_FALSE(pace.is_used_up(later));
  take(later, Pace::kAtOnce);
  EXPECT_FALSE(pace.is_used_up(later + 1ms));
  take(later, Pace::kAtOnce);
  EXPECT_TRUE(pace.is_used_up(later + 1ms));
}

// The daemon was stopped in the middle of a frame, or ended the contexts of others in it.
TEST(Pace, OneFrameThatTakesVeryLongIsNotHeldAgainstTheClient) {
  Pace pace;
  pace.charge(kBegin, kBegin + 10s);
  EXPECT_FALSE(pace.is_used_up(kBegin + 10s));
}

TEST(Pace, WhatIsOwedIsBounded) {
  Pace pace;
  for (int frame = 0; frame < 1000; ++frame) pace.charge(kBegin, kBegin + 4ms);
  EXPECT_TRUE(pace.is_used_up(kBegin + 4ms));
  EXPECT_FALSE(pace.is_used_up(kBegin + 4ms + Pace::kShare * Pace::kChargeMax));
}

}  // namespace
}  // namespace hotkv::server
