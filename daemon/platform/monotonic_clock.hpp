#pragma once
// The clock of every timeout in the daemon.

#include <time.h>

#include <chrono>

namespace hotkv::platform {

// Milliseconds of CLOCK_MONOTONIC: since boot, without the time the machine was suspended, the same
// in every process and across a restart of the daemon, so that times in shared memory stay valid.
// Unlike the wall clock it never goes back.
using MonotonicMs = std::chrono::milliseconds;

[[nodiscard]] inline MonotonicMs now() {
  timespec time{};
  ::clock_gettime(CLOCK_MONOTONIC, &time);  // cannot fail for this clock
  return std::chrono::duration_cast<MonotonicMs>(std::chrono::seconds(time.tv_sec) +
                                                 std::chrono::nanoseconds(time.tv_nsec));
}

}  // namespace hotkv::platform
