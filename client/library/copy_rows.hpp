#pragma once
// Copying rows into the arena.

#include <cstddef>
#include <span>

namespace hotkv::client {

// From this many bytes in one call on, rows are copied by streaming stores. Into lines that are in
// no cache, as those of new tokens are, they are 1.2 to 1.5 times as fast as plain ones from 16 KiB
// on, for plain stores first read every line they overwrite. But what they write is in no cache
// afterwards either, and a decode step reads its few new rows at once; so they begin where a call
// brings dozens of tokens.
inline constexpr std::size_t kStreamingBytesMin = std::size_t{64} << 10;

// Copies `rows` to `to` (same size, no overlap). `streaming`: by stores that bypass the caches,
// where the processor has them; their caller calls finish_streaming() on the same thread before it
// lets anybody know of the rows, because such stores are ordered by nothing else.
void copy_rows(std::span<std::byte> to, std::span<const std::byte> rows, bool streaming);
void finish_streaming();

}  // namespace hotkv::client
