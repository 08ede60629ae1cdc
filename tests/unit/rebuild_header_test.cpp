// Headers of shards that this build must not take over: refused by the name of what is wrong, and
// nothing of the memory is changed.

#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <functional>
#include <string>
#include <vector>

#include "daemon/core/rebuild.hpp"
#include "tests/support/core_harness.hpp"

namespace hotkv::test {
namespace {

class RebuildHeader : public ::testing::Test {
 protected:
  RebuildHeader() {
    CoreClient client(h, h.add_shard());
    EXPECT_TRUE(client.open("a", 1));
    EXPECT_TRUE(client.append("a", 1, 20));
    file = h.files.begin()->second;
    const auto tables = file->tables.bytes();
    healthy.assign(tables.begin(), tables.end());
  }

  TablesHeader& header() const {
    return *reinterpret_cast<TablesHeader*>(file->tables.bytes().data());
  }
  std::expected<core::ShardId, Error> adopt(const core::ShardMemory& memory) {
    h.core = std::make_unique<core::Core>(
        h.limits, [this] { return h.now_ms; }, h.liveness);
    return h.core->adopt_shard(memory, default_certified_architectures());
  }
  // The damaged header is refused with this code and text; the healthy one is taken afterwards.
  void expect_refusal(const std::function<void(TablesHeader&)>& damage, ErrorCode code,
                      const std::string& text) {
    SCOPED_TRACE(text);
    const auto tables = file->tables.bytes();
    damage(header());
    seal_header(header());  // as somebody would who wrote it so
    const std::vector<std::byte> before(tables.begin(), tables.end());
    const auto adopted = adopt(file->memory());
    ASSERT_FALSE(adopted.has_value());
    EXPECT_EQ(adopted.error().code, code) << adopted.error().message();
    EXPECT_NE(adopted.error().message().find(text), std::string::npos) << adopted.error().message();
    EXPECT_EQ(std::memcmp(before.data(), tables.data(), before.size()), 0);
    EXPECT_TRUE(h.core->status().shards.empty());
    std::ranges::copy(healthy, tables.begin());
    EXPECT_TRUE(adopt(file->memory()).has_value());
    std::ranges::copy(healthy, tables.begin());
  }

  CoreHarness h;
  std::shared_ptr<ShardFilesInMemory> file;
  std::vector<std::byte> healthy;
};

TEST_F(RebuildHeader, ForeignOrHalfMadeFilesAreRefused) {
  expect_refusal([](auto& it) { it.magic = 0; }, ErrorCode::shard_damaged, "magic");
  expect_refusal([](auto& it) { it.magic = kTablesMagic ^ 1; }, ErrorCode::shard_damaged, "magic");
}

// FR-139: what another version wrote is told by both versions, not by how it decodes.
TEST_F(RebuildHeader, AnotherLayoutIsAnUnsupportedVersion) {
  expect_refusal([](auto& it) { ++it.layout_version; }, ErrorCode::unsupported_version,
                 "found version " + std::to_string(kLayoutVersion + 1));
  expect_refusal([](auto& it) { it.layout_version = 0; }, ErrorCode::unsupported_version, "layout");
  expect_refusal([](auto& it) { it.header_bytes += 8; }, ErrorCode::unsupported_version, "layout");
  expect_refusal([](auto& it) { it.layout_fingerprint ^= 1; }, ErrorCode::unsupported_version,
                 "layout");
}

TEST_F(RebuildHeader, CapacitiesThatContradictEachOtherAreRefused) {
  using Field = std::uint32_t Capacities::*;
  for (const Field field :
       {&Capacities::slot_count, &Capacities::index_count, &Capacities::ledger_count,
        &Capacities::kept_head_count, &Capacities::page_count}) {
    for (const std::uint32_t value : {0u, ~0u, 0x8000'0001u}) {
      expect_refusal([&](auto& it) { it.capacities.*field = value; }, ErrorCode::shard_damaged,
                     "capacities");
    }
    expect_refusal([&](auto& it) { it.capacities.*field += 4096; }, ErrorCode::shard_damaged, "");
  }
  for (const std::uint32_t value : {0u, 63u, 65u, ~0u}) {
    expect_refusal([&](auto& it) { it.capacities.chunk_count = value; }, ErrorCode::shard_damaged,
                   "geometry");
  }
}

TEST_F(RebuildHeader, AGeometryThatContradictsItselfIsRefused) {
  const auto refuse = [&](auto field, std::initializer_list<std::uint64_t> values) {
    for (const std::uint64_t value : values) {
      expect_refusal(
          [&](auto& it) {
            using Value = std::remove_reference_t<decltype(it.geometry.*field)>;
            it.geometry.*field = static_cast<Value>(value);
          },
          ErrorCode::shard_damaged, "geometry");
    }
  };
  const std::uint64_t huge = ~std::uint64_t{0};
  refuse(&GeometryRecord::layer_count, {0, 1, 3, huge});
  refuse(&GeometryRecord::chunk_tokens, {0, 15, 17, huge});
  refuse(&GeometryRecord::key_row_bytes, {0, 31, 33, huge});
  refuse(&GeometryRecord::value_row_bytes, {0, 31, 33, huge});
  refuse(&GeometryRecord::chunk_bytes, {0, 1, 4096, huge});
  refuse(&GeometryRecord::chunk_stride_bytes, {0, 2048, 8192, huge});
  refuse(&GeometryRecord::extent_bytes, {0, 4095, 4097, huge});
  refuse(&GeometryRecord::chunks_per_extent, {0, 2, huge});
  refuse(&GeometryRecord::extent_count, {0, 63, 65, huge});
}

TEST_F(RebuildHeader, AGeometryOfAnotherRecipeIsRefused) {
  expect_refusal(
      [](auto& it) {
        it.geometry.key_row_bytes += 8;
        it.geometry.value_row_bytes -= 8;
      },
      ErrorCode::shard_damaged, "geometry");
  expect_refusal([](auto& it) { it.recipe.kv_heads = 1; }, ErrorCode::shard_damaged, "geometry");
  expect_refusal([](auto& it) { it.recipe.last_layer = 7; }, ErrorCode::shard_damaged, "geometry");
}

TEST_F(RebuildHeader, ARecipeThatIsNoneIsRefusedByItsField) {
  expect_refusal([](auto& it) { std::strcpy(it.recipe.architecture, "mamba"); },
                 ErrorCode::uncertified_architecture, "mamba");
  expect_refusal([](auto& it) { it.recipe.dtype = 99; }, ErrorCode::invalid_argument, "dtype");
  expect_refusal([](auto& it) { it.recipe.kv_heads = 0; }, ErrorCode::invalid_argument, "kv_heads");
  expect_refusal([](auto& it) { it.recipe.key_dim = ~0u; }, ErrorCode::invalid_argument, "key_dim");
  expect_refusal([](auto& it) { it.recipe.first_layer = 9; }, ErrorCode::invalid_argument,
                 "layers");
  expect_refusal([](auto& it) { it.recipe.model_id[0] = '\0'; }, ErrorCode::invalid_argument,
                 "model_id");
}

TEST_F(RebuildHeader, FilesOfOtherSizesAreRefused) {
  const auto memory = file->memory();
  for (int which = 0; which < 3; ++which) {
    core::ShardMemory shorter = memory;
    auto& part = which == 0 ? shorter.tables : which == 1 ? shorter.arena : shorter.pages;
    part = part.first(part.size() - kPageBytes);
    const auto adopted = adopt(shorter);
    ASSERT_FALSE(adopted.has_value());
    EXPECT_EQ(adopted.error().code, ErrorCode::shard_damaged);
    EXPECT_NE(adopted.error().message().find("sizes"), std::string::npos);
  }
  core::ShardMemory tiny = memory;
  tiny.tables = tiny.tables.first(sizeof(TablesHeader) - 1);
  EXPECT_NE(adopt(tiny).error().message().find("too small"), std::string::npos);
  for (const auto field :
       {&TablesHeader::tables_bytes, &TablesHeader::arena_bytes, &TablesHeader::pages_bytes}) {
    expect_refusal([&](auto& it) { it.*field += kPageBytes; }, ErrorCode::shard_damaged,
                   "file sizes");
  }
}

TEST_F(RebuildHeader, AShardThatIsThereAlreadyIsRefused) {
  ASSERT_TRUE(adopt(file->memory()).has_value());
  const auto twice = h.core->adopt_shard(file->memory(), default_certified_architectures());
  ASSERT_FALSE(twice.has_value());
  EXPECT_EQ(twice.error().code, ErrorCode::shard_damaged);
  EXPECT_NE(twice.error().message().find("is there already"), std::string::npos);
  EXPECT_EQ(h.core->verify(), std::nullopt);
}

// It says whose the memory is and what it holds: a bit of the owner, the model's name or its dtype
// would show somebody's bytes as something else.
TEST_F(RebuildHeader, AnyBitOfTheHeaderThatFlipsIsRefused) {
  constexpr std::size_t kState = offsetof(TablesHeader, state);
  for (std::size_t bit = 0; bit < sizeof(TablesHeader) * 8; ++bit) {
    const auto tables = file->tables.bytes();
    tables[bit / 8] ^= static_cast<std::byte>(1u << bit % 8);
    if (bit / 8 < kState || bit / 8 >= kState + sizeof(std::uint32_t)) {
      EXPECT_FALSE(adopt(file->memory()).has_value()) << "bit " << bit;
    } else if (adopt(file->memory())) {
      EXPECT_EQ(h.core->verify(), std::nullopt) << "bit " << bit;
    }
    std::ranges::copy(healthy, tables.begin());
  }
}

}  // namespace
}  // namespace hotkv::test
