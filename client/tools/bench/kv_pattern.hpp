#pragma once
// Bytes that tell where they belong, so that foreign, stale and torn ones are told apart.

#include <cstddef>
#include <cstdint>
#include <span>
#include <string_view>

namespace hotkv::bench {

enum class Half : std::uint32_t { keys = 0, values = 1 };

// A mark for one row: of one session, epoch, absolute token position, layer, and K or V. `version`
// tells apart tokens that were written at one position after a truncate.
struct RowMark {
  std::string_view session;
  std::uint64_t epoch;
  std::uint32_t position;
  std::uint32_t layer;
  Half half;
  std::uint32_t version = 0;

  [[nodiscard]] std::uint64_t seed() const {
    std::uint64_t x = 0xcbf2'9ce4'8422'2325;
    const auto mix = [&x](std::uint64_t value) {
      x = (x ^ value) * 0x9e37'79b9'7f4a'7c15;
      x ^= x >> 29;
    };
    for (const char c : session) mix(static_cast<unsigned char>(c));
    mix(epoch);
    mix(position);
    mix(layer * 2 + static_cast<std::uint32_t>(half));
    mix(version);
    return x;
  }
};

inline std::byte pattern_byte(std::uint64_t seed, std::size_t i) {
  const std::uint64_t x = (seed + i / 8) * 0xd6e8'feb8'6659'fd93;
  return static_cast<std::byte>((x ^ x >> 32) >> (i % 8 * 8));
}

inline void fill_row(std::span<std::byte> row, const RowMark& mark) {
  const std::uint64_t seed = mark.seed();
  for (std::size_t i = 0; i < row.size(); ++i) row[i] = pattern_byte(seed, i);
}

// Bytes of the row that are not the pattern's.
inline std::size_t wrong_bytes(std::span<const std::byte> row, const RowMark& mark) {
  const std::uint64_t seed = mark.seed();
  std::size_t wrong = 0;
  for (std::size_t i = 0; i < row.size(); ++i) wrong += row[i] != pattern_byte(seed, i) ? 1 : 0;
  return wrong;
}

}  // namespace hotkv::bench
