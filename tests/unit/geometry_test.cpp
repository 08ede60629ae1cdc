#include "shared/geometry.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <random>
#include <utility>

namespace hotkv {
namespace {

constexpr std::uint64_t kMiB = std::uint64_t{1} << 20;
constexpr std::uint64_t kGiB = std::uint64_t{1} << 30;

Recipe recipe_of(DType dtype, std::uint32_t kv_heads, std::uint32_t key_dim,
                 std::uint32_t value_dim, LayerRange layers) {
  auto recipe = Recipe::make({.architecture = "llama",
                              .model_id = "m",
                              .dtype = dtype,
                              .kv_heads = kv_heads,
                              .key_dim = key_dim,
                              .value_dim = value_dim,
                              .layers = layers});
  EXPECT_TRUE(recipe.has_value()) << recipe.error().message();
  return *recipe;
}

// 2 layers of 8 heads of 64 + 64 elements: 4096 bytes a token in f16.
Recipe small_recipe() {
  return recipe_of(DType::f16, 8, 64, 64, {2, 3});
}

Geometry made(const Recipe& recipe, const GeometryOptions& options) {
  const auto geometry = Geometry::make(recipe, options);
  EXPECT_TRUE(geometry.has_value()) << geometry.error().message();
  return geometry.value_or(Geometry{});
}

// Recipes and options of all shapes, the same ones on every run.
class RandomShapes {
 public:
  Recipe recipe() {
    const DType dtype =
        std::array{DType::f32, DType::f16, DType::i8, DType::q8_0, DType::q4_0}[below(5)];
    const std::uint32_t block = dtype_traits(dtype)->block_elements;
    const std::uint32_t first = below(40);
    return recipe_of(dtype, 1 + below(17), block * (1 + below(9)), block * below(9),
                     {first, first + below(33)});
  }
  GeometryOptions options() {
    return {.chunk_tokens = below(2) == 0 ? 0 : 1 + below(300),
            .huge_pages = below(2) == 0,
            .arena_bytes = kGiB + below(1u << 30)};
  }

 private:
  std::uint32_t below(std::uint32_t bound) {
    return std::uniform_int_distribution<std::uint32_t>(0, bound - 1)(engine_);
  }
  std::mt19937 engine_{20240607};
};

TEST(ChunkTokensFor, IsTheLargestMultipleOf16ThatKeepsAChunkWithin2MiB) {
  for (std::uint64_t bytes = 1; bytes < 400'000; bytes += 37) {
    const std::uint32_t tokens = chunk_tokens_for(bytes);
    ASSERT_EQ(tokens % 16, 0u) << bytes;
    ASSERT_GE(tokens, 16u) << bytes;
    ASSERT_LE(tokens, 256u) << bytes;
    if (tokens > 16) {
      ASSERT_LE(tokens * bytes, 2 * kMiB) << bytes;
    }
    if (tokens < 256) {
      ASSERT_GT((tokens + 16) * bytes, 2 * kMiB) << bytes;
    }
  }
}

TEST(ChunkTokensFor, ValuesAtItsEdges) {
  EXPECT_EQ(chunk_tokens_for(1), 256u);
  EXPECT_EQ(chunk_tokens_for(8192), 256u);
  EXPECT_EQ(chunk_tokens_for(8193), 240u);
  EXPECT_EQ(chunk_tokens_for(65536), 32u);
  EXPECT_EQ(chunk_tokens_for(131072), 16u);
  EXPECT_EQ(chunk_tokens_for(131073), 16u);
  EXPECT_EQ(chunk_tokens_for(std::uint64_t{1} << 43), 16u);
}

TEST(Geometry, SizesOfAnOrdinaryShard) {
  const Geometry g = made(small_recipe(), {.arena_bytes = 10 * kMiB + 5});
  EXPECT_EQ(g.layer_count, 2u);
  EXPECT_EQ(g.key_row_bytes, 1024u);
  EXPECT_EQ(g.value_row_bytes, 1024u);
  EXPECT_EQ(g.chunk_tokens, 256u);
  EXPECT_EQ(g.chunk_bytes, kMiB);
  EXPECT_EQ(g.chunk_stride_bytes, kMiB);
  EXPECT_EQ(g.extent_bytes, kMiB);
  EXPECT_EQ(g.chunks_per_extent, 1u);
  EXPECT_EQ(g.chunk_count, 10u);
}

TEST(Geometry, GivenChunkTokensAreTaken) {
  const Geometry g = made(small_recipe(), {.chunk_tokens = 3, .arena_bytes = kMiB});
  EXPECT_EQ(g.chunk_tokens, 3u);
  EXPECT_EQ(g.chunk_bytes, 3u * 4096);
}

// FR-118: all layers of a shard have one row size by their recipe; the spans of all are disjoint
// and fill the chunk.
TEST(Geometry, SpansOfAllLayersFillTheChunkWithoutOverlap) {
  RandomShapes shapes;
  for (int round = 0; round < 500; ++round) {
    const Recipe recipe = shapes.recipe();
    const Geometry g = made(recipe, shapes.options());
    std::uint64_t end = 0;  // spans come in order, so "begins where the last one ended" is enough
    for (std::uint32_t layer = 0; layer < g.layer_count; ++layer) {
      ASSERT_EQ(g.keys_offset(layer).value(), end) << recipe.canonical_text() << layer;
      end += g.chunk_tokens * g.key_row_bytes;
      ASSERT_EQ(g.values_offset(layer).value(), end) << recipe.canonical_text() << layer;
      end += g.chunk_tokens * g.value_row_bytes;
    }
    ASSERT_EQ(end, g.chunk_bytes) << recipe.canonical_text();
    ASSERT_EQ(end, recipe.bytes_per_token() * g.chunk_tokens) << recipe.canonical_text();
    ASSERT_GE(g.chunk_stride_bytes, g.chunk_bytes);
    ASSERT_LT(g.chunk_stride_bytes - g.chunk_bytes, kPageBytes);
    ASSERT_EQ(g.chunk_stride_bytes % kPageBytes, 0u);
  }
}

// FR-118: up to the last chunk of the arena.
TEST(Geometry, ChunksAndExtentsNeverOverlapAndStayWithinTheArena) {
  RandomShapes shapes;
  for (int round = 0; round < 200; ++round) {
    const Recipe recipe = shapes.recipe();
    const GeometryOptions options = shapes.options();
    const Geometry g = made(recipe, options);
    ASSERT_EQ(g.chunk_count, g.extent_count * g.chunks_per_extent);
    ASSERT_LE(g.extent_count * g.extent_bytes, options.arena_bytes);
    ASSERT_GT((g.extent_count + 1) * g.extent_bytes, options.arena_bytes);
    std::uint64_t end = 0;
    for (std::uint32_t i = 0; i < g.chunk_count; ++i) {
      const ChunkIndex chunk{i};
      const std::uint64_t begin = g.chunk_offset(chunk).value();
      const std::uint64_t extent = g.extent_offset(g.extent_of(chunk)).value();
      ASSERT_GE(begin, end) << i;
      ASSERT_EQ(begin % kPageBytes, 0u) << i;
      end = begin + g.chunk_stride_bytes;
      ASSERT_GE(begin, extent) << i;
      ASSERT_LE(end, extent + g.extent_bytes) << i;
    }
    ASSERT_LE(end, options.arena_bytes);
  }
}

TEST(Geometry, HugeExtentsAreWholeHugePagesWithLittleWaste) {
  RandomShapes shapes;
  for (int round = 0; round < 500; ++round) {
    const Recipe recipe = shapes.recipe();
    const Geometry g = made(recipe, {.huge_pages = true, .arena_bytes = 4 * kGiB});
    ASSERT_EQ(g.extent_bytes % kHugePageBytes, 0u);
    ASSERT_GE(g.extent_bytes, g.chunk_stride_bytes);
    const std::uint64_t waste = g.extent_bytes - g.chunks_per_extent * g.chunk_stride_bytes;
    ASSERT_LT(waste, g.chunk_stride_bytes) << "another chunk would have fitted";
    // Eight sizes are tried; in the largest, at least seven chunks up to one huge page fit.
    ASSERT_LT(waste, g.extent_bytes / 8) << recipe.canonical_text();
  }
}

TEST(Geometry, AChunkThatDividesAHugePageWastesNothing) {
  const Geometry g = made(small_recipe(), {.huge_pages = true, .arena_bytes = kGiB});
  EXPECT_EQ(g.extent_bytes, kHugePageBytes);
  EXPECT_EQ(g.chunks_per_extent, 2u);
}

TEST(Geometry, AChunkALittleOverHalfAHugePageGetsALargerExtent) {
  // 1.25 MiB: one in 2 MiB wastes 3/8; eight in 10 MiB waste nothing.
  const Geometry g =
      made(small_recipe(), {.chunk_tokens = 320, .huge_pages = true, .arena_bytes = kGiB});
  EXPECT_EQ(g.chunk_stride_bytes, 5 * kMiB / 4);
  EXPECT_EQ(g.extent_bytes, 10 * kMiB);
  EXPECT_EQ(g.chunks_per_extent, 8u);
}

TEST(Geometry, WithoutHugePagesAnExtentIsAChunk) {
  RandomShapes shapes;
  for (int round = 0; round < 100; ++round) {
    const Geometry g = made(shapes.recipe(), {.arena_bytes = kGiB});
    ASSERT_EQ(g.extent_bytes, g.chunk_stride_bytes);
    ASSERT_EQ(g.chunks_per_extent, 1u);
  }
}

TEST(Geometry, OneTensorModelsHaveEmptyValueSpans) {
  const Geometry g = made(recipe_of(DType::bf16, 1, 576, 0, {0, 2}), {.arena_bytes = kGiB});
  EXPECT_EQ(g.value_row_bytes, 0u);
  EXPECT_EQ(g.values_offset(0), g.keys_offset(1));
  EXPECT_EQ(g.values_offset(2).value(), g.chunk_bytes);
}

TEST(Geometry, ChunksForRoundsUp) {
  const Geometry g = made(small_recipe(), {.chunk_tokens = 16, .arena_bytes = kGiB});
  EXPECT_EQ(g.chunks_for(TokenCount{0}), 0u);
  EXPECT_EQ(g.chunks_for(TokenCount{1}), 1u);
  EXPECT_EQ(g.chunks_for(TokenCount{16}), 1u);
  EXPECT_EQ(g.chunks_for(TokenCount{17}), 2u);
  EXPECT_EQ(g.chunks_for(TokenCount{kContextTokensMax}), 1u << 27);
}

TEST(Geometry, AnArenaWithoutRoomForOneExtentIsRefusedByName) {
  for (const bool huge_pages : {false, true}) {
    const std::uint64_t extent = huge_pages ? kHugePageBytes : kMiB;
    const auto refused =
        Geometry::make(small_recipe(), {.huge_pages = huge_pages, .arena_bytes = extent - 1});
    ASSERT_FALSE(refused.has_value());
    EXPECT_EQ(refused.error().code, ErrorCode::invalid_argument);
    EXPECT_EQ(refused.error().object, "arena_bytes");
    EXPECT_EQ(made(small_recipe(), {.huge_pages = huge_pages, .arena_bytes = extent}).extent_count,
              1u);
  }
}

TEST(Geometry, AChunkOverItsBoundIsRefusedByName) {
  const std::uint32_t most = static_cast<std::uint32_t>(kChunkBytesMax / 4096);
  EXPECT_EQ(made(small_recipe(), {.chunk_tokens = most, .arena_bytes = kGiB}).chunk_bytes,
            kChunkBytesMax);
  const Recipe largest = recipe_of(DType::f32, Recipe::kHeadsMax, Recipe::kDimMax, Recipe::kDimMax,
                                   {0, Recipe::kLayersMax - 1});
  for (const auto& [recipe, chunk_tokens] :
       {std::pair{small_recipe(), most + 1},
        {small_recipe(), ~0u},
        {largest, 0u},
        {largest, 1u},
        {largest, 1u << 21},
        {largest, ~0u}}) {  // the last two: products beyond 64 bits
    const auto refused =
        Geometry::make(recipe, {.chunk_tokens = chunk_tokens, .arena_bytes = ~std::uint64_t{0}});
    ASSERT_FALSE(refused.has_value()) << chunk_tokens;
    EXPECT_EQ(refused.error().code, ErrorCode::invalid_argument);
    EXPECT_EQ(refused.error().object, "chunk_tokens");
  }
}

TEST(Geometry, TheLastChunkOfAHugeArenaStillHasATipOfItsOwn) {
  const Recipe tiny = recipe_of(DType::i8, 1, 1, 0, {0, 0});
  for (const bool huge_pages : {false, true}) {
    const Geometry g =
        made(tiny, {.huge_pages = huge_pages, .arena_bytes = std::uint64_t{1} << 60});
    // Two tips are no chunk; index + 2 must not wrap.
    EXPECT_LE(g.chunk_count, 0xffff'fffdu);
    EXPECT_GE(g.chunk_count, 0xffff'0000u);
    EXPECT_EQ(g.chunk_offset(ChunkIndex{g.chunk_count - 1}).value() + g.chunk_stride_bytes,
              std::uint64_t{g.chunk_count} * g.chunk_stride_bytes);
  }
}

}  // namespace
}  // namespace hotkv
