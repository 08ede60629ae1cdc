#include "client/library/copy_rows.hpp"

#include <algorithm>
#include <cstdint>
#include <cstring>

#if defined(__SSE2__)
#include <emmintrin.h>
#endif

namespace hotkv::client {

#if defined(__SSE2__)

namespace {

// Four stores fill one cache line, so that each line leaves the core whole.
constexpr std::size_t kLineBytes = 64;

void stream_lines(std::byte* to, const std::byte* from, std::size_t lines) {
  for (; lines != 0; --lines, to += kLineBytes, from += kLineBytes) {
    const auto* source = reinterpret_cast<const __m128i*>(from);
    auto* target = reinterpret_cast<__m128i*>(to);
    const __m128i a = _mm_loadu_si128(source);
    const __m128i b = _mm_loadu_si128(source + 1);
    const __m128i c = _mm_loadu_si128(source + 2);
    const __m128i d = _mm_loadu_si128(source + 3);
    _mm_stream_si128(target, a);
    _mm_stream_si128(target + 1, b);
    _mm_stream_si128(target + 2, c);
    _mm_stream_si128(target + 3, d);
  }
}

}  // namespace

void copy_rows(std::span<std::byte> to, std::span<const std::byte> rows, bool streaming) {
  if (rows.empty()) return;
  if (!streaming) {
    std::memcpy(to.data(), rows.data(), rows.size());
    return;
  }
  // Rows of block formats need not begin on a cache line.
  const std::size_t before = std::min(
      rows.size(),
      (kLineBytes - reinterpret_cast<std::uintptr_t>(to.data()) % kLineBytes) % kLineBytes);
  const std::size_t lines = (rows.size() - before) / kLineBytes;
  const std::size_t done = before + lines * kLineBytes;
  std::memcpy(to.data(), rows.data(), before);
  stream_lines(to.data() + before, rows.data() + before, lines);
  std::memcpy(to.data() + done, rows.data() + done, rows.size() - done);
}

void finish_streaming() {
  _mm_sfence();
}

#else

void copy_rows(std::span<std::byte> to, std::span<const std::byte> rows, bool) {
  if (!rows.empty()) std::memcpy(to.data(), rows.data(), rows.size());
}

void finish_streaming() {}

#endif

}  // namespace hotkv::client
