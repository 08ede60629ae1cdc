#pragma once
// How long a client that lost its daemon waits before its next try to come back.

#include <algorithm>
#include <chrono>
#include <cstdint>

namespace hotkv::client {

inline constexpr std::chrono::microseconds kFirstDelayMax = std::chrono::milliseconds(10);
inline constexpr std::chrono::microseconds kDelayMax = std::chrono::seconds(2);
// The number of tries after which delays grow no more: 10 ms doubled eight times is beyond 2 s.
inline constexpr std::uint32_t kSlowestTry = 8;

// Between 1 us and a bound that doubles with each try up to kDelayMax; where in between, `random`
// says (full jitter). Clients of one daemon lose it in the same moment; without the jitter all of
// them would come back in the same moment too, and again after each refusal.
[[nodiscard]] constexpr std::chrono::microseconds retry_delay(std::uint32_t tries_before,
                                                              std::uint64_t random) {
  const auto bound =
      std::min(kDelayMax, kFirstDelayMax * (1u << std::min(tries_before, kSlowestTry)));
  return std::chrono::microseconds(1 + random % static_cast<std::uint64_t>(bound.count()));
}

}  // namespace hotkv::client
