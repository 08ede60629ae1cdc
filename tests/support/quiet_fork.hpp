#pragma once
// A fork at a moment at which no other thread of this process works: a child that is forked while
// another thread is inside the allocator finds it locked for good. The C library unlocks its own in
// the child, the allocator of a sanitizer does not.

#include <unistd.h>

#include <chrono>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <string>
#include <thread>

namespace hotkv::testing {

// Whether each other thread sleeps. Watching threads of the library do, between two replies.
inline bool other_threads_sleep() {
  const std::string self = std::to_string(::gettid());
  for (const auto& task : std::filesystem::directory_iterator("/proc/self/task")) {
    if (task.path().filename() == self) continue;
    std::ifstream file(task.path() / "stat");
    const std::string stat{std::istreambuf_iterator<char>(file), {}};
    const auto end_of_name = stat.rfind(')');
    if (end_of_name == std::string::npos) continue;  // it has ended
    if (stat.compare(end_of_name + 1, 2, " S") != 0) return false;
  }
  return true;
}

// Waits a while for that moment; a thread of the test that never sleeps must not exist.
inline pid_t quiet_fork() {
  const auto end = std::chrono::steady_clock::now() + std::chrono::seconds(5);
  while (!other_threads_sleep() && std::chrono::steady_clock::now() < end) {
    std::this_thread::sleep_for(std::chrono::microseconds(200));
  }
  return ::fork();
}

}  // namespace hotkv::testing
