// Preloaded into a daemon: every reading of the wall clock is another time, in 1970, in 1999, an
// hour ago, ten years ahead. The clocks that never go back are left alone.

#include <sys/syscall.h>
#include <sys/time.h>
#include <time.h>
#include <unistd.h>

#include <atomic>

namespace {

constexpr time_t kHour = 3600;
constexpr time_t kYear = 365 * 24 * kHour;

time_t jumping(time_t seconds) {
  static std::atomic<unsigned> readings = 0;
  switch (readings++ % 4) {
    case 0: return 0;
    case 1: return seconds - kHour;
    case 2: return seconds + 10 * kYear;
    default: return 30 * kYear;
  }
}

}  // namespace

#pragma GCC visibility push(default)
extern "C" {

int clock_gettime(clockid_t clock, timespec* time) noexcept {
  const long result = ::syscall(SYS_clock_gettime, clock, time);
  const bool is_wall_clock =
      clock == CLOCK_REALTIME || clock == CLOCK_REALTIME_COARSE || clock == CLOCK_TAI;
  if (result == 0 && is_wall_clock) time->tv_sec = jumping(time->tv_sec);
  return static_cast<int>(result);
}

int gettimeofday(timeval* time, void*) noexcept {
  timespec now{};
  clock_gettime(CLOCK_REALTIME, &now);
  *time = {now.tv_sec, now.tv_nsec / 1000};
  return 0;
}

time_t time(time_t* result) noexcept {
  timespec now{};
  clock_gettime(CLOCK_REALTIME, &now);
  if (result != nullptr) *result = now.tv_sec;
  return now.tv_sec;
}

}  // extern "C"
#pragma GCC visibility pop
