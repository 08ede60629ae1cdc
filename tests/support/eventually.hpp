#pragma once
// A bounded wait for what another thread or process does next.

#include <chrono>
#include <thread>

namespace hotkv::testing {

// Looks until `is_so()` or for twenty seconds; what it saw last.
template <class Condition>
[[nodiscard]] bool eventually(Condition is_so) {
  const auto end = std::chrono::steady_clock::now() + std::chrono::seconds(20);
  while (!is_so()) {
    if (std::chrono::steady_clock::now() >= end) return false;
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
  return true;
}

}  // namespace hotkv::testing
