#include "daemon/server/pace.hpp"

#include <gtest/gtest.h>

#include <chrono>

namespace hotkv::server {
namespace {

using namespace std::chrono_literals;
using Time = Pace::Clock::time_point;

constexpr Time kBegin{1h};

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
  Pace pace;
  Time now = kBegin;
  Pace::Clock::duration taken{0};
  while (now < kBegin + 60s) {
    if (pace.is_used_up(now)) {
      now += Pace::kRest;
      continue;
    }
    pace.charge(now, now + 10us);
    now += 10us;
    taken += 10us;
  }
  EXPECT_GT(taken, 60000ms / Pace::kShare);
  EXPECT_LT(taken, 60000ms / Pace::kShare + 2 * Pace::kAtOnce);
}

TEST(Pace, TimeThatPassesPaysForAsMuchAsCanBeTakenAtOnceAndNoMore) {
  Pace pace;
  pace.charge(kBegin, kBegin + 2 * Pace::kAtOnce);
  EXPECT_TRUE(pace.is_used_up(kBegin + Pace::kAtOnce));
  const Time later = kBegin + 1h;
  EXPECT_FALSE(pace.is_used_up(later));
  pace.charge(later, later + Pace::kAtOnce);
  EXPECT_FALSE(pace.is_used_up(later + Pace::kAtOnce));
  pace.charge(later, later + 2 * Pace::kAtOnce);
  EXPECT_TRUE(pace.is_used_up(later + 2 * Pace::kAtOnce));
}

}  // namespace
}  // namespace hotkv::server
