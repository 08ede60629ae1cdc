#pragma once
// The seed of a random test: printed, and taken from HOTKV_SEED to see a failure again.

#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <random>

namespace hotkv::testing {

inline std::uint32_t random_seed() {
  const char* const given = std::getenv("HOTKV_SEED");
  const auto seed = given != nullptr ? static_cast<std::uint32_t>(std::strtoul(given, nullptr, 10))
                                     : std::random_device{}();
  std::printf("HOTKV_SEED=%u\n", seed);
  return seed;
}

}  // namespace hotkv::testing
