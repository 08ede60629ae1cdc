#pragma once
// Processor time that a process has taken: what it costs, however busy the machine is.

#include <sys/types.h>
#include <time.h>

#include <chrono>
#include <fstream>
#include <string>

namespace hotkv::testing {

// Of all its threads.
[[nodiscard]] inline std::chrono::nanoseconds processor_time(pid_t pid) {
  clockid_t clock{};
  timespec time{};
  if (::clock_getcpuclockid(pid, &clock) != 0 || ::clock_gettime(clock, &time) != 0) return {};
  return std::chrono::seconds(time.tv_sec) + std::chrono::nanoseconds(time.tv_nsec);
}

// Of its first thread alone, which in the daemon is the loop that serves everybody. 0 where the
// kernel does not tell.
[[nodiscard]] inline std::chrono::nanoseconds processor_time_of_first_thread(pid_t pid) {
  const std::string number = std::to_string(pid);
  std::ifstream file("/proc/" + number + "/task/" + number + "/schedstat");
  std::chrono::nanoseconds::rep running = 0;
  file >> running;
  return std::chrono::nanoseconds(running);
}

[[nodiscard]] inline double milliseconds_of(std::chrono::nanoseconds time) {
  return std::chrono::duration<double, std::milli>(time).count();
}

}  // namespace hotkv::testing
