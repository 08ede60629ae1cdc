#pragma once
// The one function that computes every size and offset of a chunk and of the arena.

#include <cstdint>
#include <expected>

#include <hotkv/error.hpp>
#include <hotkv/recipe.hpp>
#include <hotkv/types.hpp>

namespace hotkv {

// Pages of the kernel: chunks begin at a multiple of this.
inline constexpr std::uint64_t kPageBytes = 4096;
// Huge pages of the kernel on x86-64 and (with 4 KiB base pages) arm64.
inline constexpr std::uint64_t kHugePageBytes = std::uint64_t{2} << 20;
// Tokens of one context. A length fits 31 bits, so sums of two never wrap a 32-bit word.
inline constexpr std::uint32_t kContextTokensMax = (std::uint32_t{1} << 31) - 1;

// The largest chunk: a copy of a part-filled one is made in one piece while others wait.
inline constexpr std::uint64_t kChunkBytesMax = std::uint64_t{64} << 20;

struct GeometryOptions {
  std::uint32_t chunk_tokens = 0;  // 0: chosen from the recipe, see chunk_tokens_for()
  bool huge_pages = false;         // extents are whole huge pages
  std::uint64_t arena_bytes = 0;   // memory for chunks, a limit made large at birth
};

// Sizes of one shard. All are checked against overflow when made; plain arithmetic afterwards.
//
// A chunk holds `chunk_tokens` tokens of all owned layers, [layer][K,V][token][head][dim]:
// layer by layer first the K rows of all tokens, then the V rows.
struct Geometry {
  std::uint32_t layer_count = 0;
  std::uint32_t chunk_tokens = 0;
  std::uint64_t key_row_bytes = 0;       // K of one token in one layer
  std::uint64_t value_row_bytes = 0;     // V of one token in one layer; may be 0
  std::uint64_t chunk_bytes = 0;         // used bytes of a chunk
  std::uint64_t chunk_stride_bytes = 0;  // chunk_bytes rounded up to kPageBytes
  std::uint64_t extent_bytes = 0;        // the unit of provisioning and of the budget
  std::uint32_t chunks_per_extent = 0;
  std::uint32_t extent_count = 0;
  std::uint32_t chunk_count = 0;  // extent_count * chunks_per_extent

  // Errors: invalid_argument naming the field, when a size overflows or not one chunk fits.
  [[nodiscard]] static std::expected<Geometry, Error> make(const Recipe& recipe,
                                                           const GeometryOptions& options);

  [[nodiscard]] std::uint64_t layer_bytes() const {
    return std::uint64_t{chunk_tokens} * (key_row_bytes + value_row_bytes);
  }
  // Offset of a tensor's first row within a chunk; `layer` counts from the first owned layer.
  [[nodiscard]] ByteOffset keys_offset(std::uint32_t layer) const {
    return ByteOffset{layer * layer_bytes()};
  }
  [[nodiscard]] ByteOffset values_offset(std::uint32_t layer) const {
    return ByteOffset{layer * layer_bytes() + chunk_tokens * key_row_bytes};
  }
  // Offset of a chunk or an extent from the arena's first chunk.
  [[nodiscard]] ByteOffset chunk_offset(ChunkIndex chunk) const {
    return ByteOffset{chunk.value() / chunks_per_extent * extent_bytes +
                      chunk.value() % chunks_per_extent * chunk_stride_bytes};
  }
  [[nodiscard]] ByteOffset extent_offset(ExtentIndex extent) const {
    return ByteOffset{extent.value() * extent_bytes};
  }
  [[nodiscard]] ExtentIndex extent_of(ChunkIndex chunk) const {
    return ExtentIndex{chunk.value() / chunks_per_extent};
  }
  // Chunks needed for `tokens` tokens.
  [[nodiscard]] std::uint32_t chunks_for(TokenCount tokens) const {
    return tokens.value() / chunk_tokens + (tokens.value() % chunk_tokens != 0 ? 1 : 0);
  }
  friend bool operator==(const Geometry&, const Geometry&) = default;
};

// The largest multiple of 16 in [16, 256] that keeps a chunk at or under 2 MiB; 16 if none does.
[[nodiscard]] std::uint32_t chunk_tokens_for(std::uint64_t bytes_per_token);

}  // namespace hotkv
