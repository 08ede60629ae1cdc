#include "shared/geometry.hpp"

#include <algorithm>
#include <limits>
#include <string>

namespace hotkv {
namespace {

constexpr std::uint32_t kChunkTokensStep = 16;
constexpr std::uint32_t kChunkTokensMax = 256;
// Address space of one process is 2^47; an arena takes half of it at most.
constexpr std::uint64_t kArenaBytesMax = std::uint64_t{1} << 46;
constexpr std::uint64_t kChunkBytesTarget = std::uint64_t{2} << 20;
// The arena's index type leaves room for the two tips that are no chunk.
constexpr std::uint64_t kChunksMax = std::numeric_limits<std::uint32_t>::max() - 2;
// Huge-page extents stop growing when their tail wastes less than 1/32, or at 16 MiB.
constexpr std::uint64_t kWasteDivisor = 32;
constexpr std::uint64_t kHugePagesPerExtentMax = 8;

Error refuse(std::string field, std::string cause) {
  return Error{ErrorCode::invalid_argument, "geometry", std::move(field), std::move(cause)};
}

bool multiply(std::uint64_t a, std::uint64_t b, std::uint64_t& product) {
  return !__builtin_mul_overflow(a, b, &product);
}

std::uint64_t round_up(std::uint64_t value, std::uint64_t unit) {
  return (value + unit - 1) / unit * unit;
}

// The smallest multiple of a huge page that holds whole chunks with little waste.
std::uint64_t huge_extent_bytes(std::uint64_t stride) {
  std::uint64_t best = 0;
  std::uint64_t best_waste = 0;
  const std::uint64_t least = round_up(stride, kHugePageBytes);
  for (std::uint64_t step = 0; step < kHugePagesPerExtentMax; ++step) {
    const std::uint64_t bytes = least + step * kHugePageBytes;
    const std::uint64_t waste = bytes % stride;
    // Compares waste/bytes with best_waste/best without dividing; both stay far below 2^64.
    if (best == 0 || waste * (best / kPageBytes) < best_waste * (bytes / kPageBytes)) {
      best = bytes;
      best_waste = waste;
    }
    if (best_waste * kWasteDivisor < best) break;
  }
  return best;
}

}  // namespace

std::uint32_t chunk_tokens_for(std::uint64_t bytes_per_token) {
  const std::uint64_t fitting =
      bytes_per_token == 0 ? kChunkTokensMax : kChunkBytesTarget / bytes_per_token;
  const std::uint64_t stepped = fitting / kChunkTokensStep * kChunkTokensStep;
  return static_cast<std::uint32_t>(
      std::clamp<std::uint64_t>(stepped, kChunkTokensStep, kChunkTokensMax));
}

std::expected<Geometry, Error> Geometry::make(const Recipe& recipe,
                                              const GeometryOptions& options) {
  Geometry g;
  g.layer_count = recipe.fields().layers.count();
  g.key_row_bytes = recipe.key_row_bytes();
  g.value_row_bytes = recipe.value_row_bytes();
  g.chunk_tokens =
      options.chunk_tokens != 0 ? options.chunk_tokens : chunk_tokens_for(recipe.bytes_per_token());
  // A recipe's bounds keep bytes_per_token below 2^44; a chunk may still overflow by its tokens.
  if (!multiply(recipe.bytes_per_token(), g.chunk_tokens, g.chunk_bytes) ||
      g.chunk_bytes > kChunkBytesMax) {
    return std::unexpected(refuse("chunk_tokens", std::to_string(g.chunk_tokens) + " tokens of " +
                                                      std::to_string(recipe.bytes_per_token()) +
                                                      " bytes make a chunk of more than " +
                                                      std::to_string(kChunkBytesMax) + " bytes"));
  }
  g.chunk_stride_bytes = round_up(g.chunk_bytes, kPageBytes);
  g.extent_bytes =
      options.huge_pages ? huge_extent_bytes(g.chunk_stride_bytes) : g.chunk_stride_bytes;
  g.chunks_per_extent = static_cast<std::uint32_t>(g.extent_bytes / g.chunk_stride_bytes);
  const std::uint64_t extents =
      std::min(std::min(options.arena_bytes, kArenaBytesMax) / g.extent_bytes,
               kChunksMax / g.chunks_per_extent);
  if (extents == 0) {
    return std::unexpected(
        refuse("arena_bytes", "not one extent of " + std::to_string(g.extent_bytes) +
                                  " bytes fits into " + std::to_string(options.arena_bytes)));
  }
  g.extent_count = static_cast<std::uint32_t>(extents);
  g.chunk_count = g.extent_count * g.chunks_per_extent;
  return g;
}

}  // namespace hotkv
