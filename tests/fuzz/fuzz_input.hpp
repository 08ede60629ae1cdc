#pragma once
// The bytes of one input, read front to back as choices and numbers. Behind their end everything is
// zero, so every input means something and a longer one only adds to it.

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <span>
#include <string_view>

namespace hotkv::fuzz {

// Ends the process, which is what the fuzzer and the replay take for a finding.
inline void require(bool condition, std::string_view what) {
  if (condition) [[likely]]
    return;
  std::fprintf(stderr, "finding: %.*s\n", static_cast<int>(what.size()), what.data());
  std::abort();
}

class FuzzInput {
 public:
  explicit FuzzInput(std::span<const std::uint8_t> bytes) : rest_(bytes) {}

  [[nodiscard]] bool is_done() const { return rest_.empty(); }
  std::uint8_t byte() {
    if (rest_.empty()) return 0;
    const std::uint8_t first = rest_.front();
    rest_ = rest_.subspan(1);
    return first;
  }
  // Below `end`, which is at most 256.
  std::uint32_t below(std::uint32_t end) { return byte() % end; }
  std::span<const std::byte> bytes(std::size_t count) {
    const auto taken = rest_.first(std::min(count, rest_.size()));
    rest_ = rest_.subspan(taken.size());
    return std::as_bytes(taken);
  }
  template <class T>
  T raw() {
    T value = 0;
    for (std::size_t i = 0; i < sizeof(T); ++i) {
      value = static_cast<T>(value << 8 % (8 * sizeof(T))) | byte();
    }
    return value;
  }
  // Mostly small, sometimes at an edge, sometimes anything.
  std::uint32_t number() {
    const std::uint8_t first = byte();
    if (first < 224) return first;
    static constexpr std::array<std::uint32_t, 24> kEdges{
        0x7fff'fffe, 0x7fff'ffff, 0x8000'0000, 0x8000'0001, 0xffff'ffef, 0xffff'fff0,
        0xffff'fff1, 0xffff'fff2, 0xffff'fff3, 0xffff'fffe, 0xffff'ffff, 0x0000'ffff,
        0x0001'0000, 0x3fff'ffff, 0x4000'0000, 0xaaaa'aaaa, 1016,        1024,
        4095,        4096,        8192,        65536,       0x0100'0000, 0x00ff'ffff};
    if (first < 224 + kEdges.size()) return kEdges[first - 224u];
    return raw<std::uint32_t>();
  }
  std::uint64_t wide_number() {
    const std::uint64_t high = number();
    return high << 32 | number();
  }

 private:
  std::span<const std::uint8_t> rest_;
};

}  // namespace hotkv::fuzz
