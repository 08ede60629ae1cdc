#include "client/library/populated_chunks.hpp"

#include <sys/mman.h>

namespace hotkv::client {

void PopulatedChunks::populate(std::span<const ChunkIndex> pinned_chunks, const Geometry& geometry,
                               std::byte* chunks) {
#if defined(MADV_POPULATE_WRITE)
  if (seen_ == nullptr) return;
  for (const ChunkIndex chunk : pinned_chunks) {
    // Relaxed: it guards no data; two threads at once would at worst ask twice.
    std::atomic_ref<std::uint8_t> seen(seen_.get()[chunk.value()]);
    if (seen.load(std::memory_order_relaxed) != 0) continue;
    seen.store(1, std::memory_order_relaxed);
    ::madvise(chunks + geometry.chunk_offset(chunk).value(), geometry.chunk_stride_bytes,
              MADV_POPULATE_WRITE);
  }
#else
  static_cast<void>(pinned_chunks);
  static_cast<void>(geometry);
  static_cast<void>(chunks);
#endif
}

}  // namespace hotkv::client
