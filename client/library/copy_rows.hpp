#pragma once
// Copying rows into the arena.

#include <cstddef>
#include <span>

namespace hotkv::client {

// From this many bytes in one call on, rows are copied by streaming stores: about what a core's
// second-level cache holds a good part of. Below it plain stores win, because the rows are read again
// soon and the fence costs; above it plain stores would first read every line they overwrite, and
// push everything else out of the caches.
inline constexpr std::size_t kStreamingBytesMin = std::size_t{256} << 10;

// Copies `rows` to `to` (same size, no overlap). `streaming`: by stores that bypass the caches, where
// the processor has them; their caller calls finish_streaming() on the same thread before it lets
// anybody know of the rows, because such stores are ordered by nothing else.
void copy_rows(std::span<std::byte> to, std::span<const std::byte> rows, bool streaming);
void finish_streaming();

}  // namespace hotkv::client
