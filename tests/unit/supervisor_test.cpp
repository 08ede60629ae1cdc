#include "daemon/supervisor.hpp"

#include <gtest/gtest.h>

#include <chrono>
#include <cstddef>

namespace hotkv {
namespace {

using std::chrono::milliseconds;

TEST(RestartDelay, DoublesWithEachStartOfTheLastMinuteUpToASecond) {
  EXPECT_EQ(restart_delay(1), milliseconds(100));
  EXPECT_EQ(restart_delay(2), milliseconds(200));
  EXPECT_EQ(restart_delay(4), milliseconds(800));
  for (std::size_t starts = 5; starts < 100; ++starts) {
    EXPECT_EQ(restart_delay(starts), milliseconds(1000)) << starts;
  }
}

// A daemon that has run for longer than a minute has none.
TEST(RestartDelay, IsTheFirstOneAfterALongLife) {
  EXPECT_EQ(restart_delay(0), milliseconds(100));
}

}  // namespace
}  // namespace hotkv
