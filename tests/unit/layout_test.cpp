#include "shared/layout.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <functional>
#include <memory>
#include <string>
#include <vector>

namespace hotkv {
namespace {

constexpr std::uint64_t kMiB = std::uint64_t{1} << 20;

RecipeFields llama_fields() {
  return {.architecture = "llama",
          .model_id = "llama-3-8b",
          .dtype = DType::bf16,
          .kv_heads = 8,
          .key_dim = 64,
          .value_dim = 32,
          .layers = {2, 3}};
}

// Everything that goes into the header of one shard.
struct Shard {
  Recipe recipe = *Recipe::make(llama_fields());
  Geometry geometry = *Geometry::make(recipe, {.huge_pages = true, .arena_bytes = 64 * kMiB});
  Capacities capacities = capacities_for(100, 50, 4, geometry);
  FileLayout layout = FileLayout::of(capacities, geometry);
};

// On the heap: a header is neither copied nor moved, for its words are atomics.
std::unique_ptr<TablesHeader> good_header() {
  const Shard shard;
  auto header = std::make_unique<TablesHeader>();
  header->layout_version = kLayoutVersion;
  header->header_bytes = sizeof(TablesHeader);
  header->layout_fingerprint = kLayoutFingerprint;
  header->boot_token = 1;
  header->state = static_cast<std::uint32_t>(ShardState::open);
  header->recipe = encode_recipe(shard.recipe);
  header->capacities = shard.capacities;
  header->geometry = encode_geometry(shard.geometry);
  header->tables_bytes = shard.layout.tables_bytes;
  header->arena_bytes = shard.layout.arena_bytes;
  header->pages_bytes = shard.layout.pages_bytes;
  seal_header(*header);
  header->magic = kTablesMagic;
  return header;
}

struct HeaderChange {
  const char* what;
  std::function<void(TablesHeader&)> apply;
};

void expect_refused(const HeaderChange& change, ErrorCode code, std::string_view object) {
  const auto header = good_header();
  change.apply(*header);
  seal_header(*header);
  const auto checked = check_header(*header);
  ASSERT_FALSE(checked.has_value()) << change.what;
  EXPECT_EQ(checked.error().code, code) << change.what;
  EXPECT_EQ(checked.error().object, object) << change.what;
}

TEST(CheckHeader, AcceptsWhatCapacitiesForAndMakeGive) {
  const auto checked = check_header(*good_header());
  EXPECT_TRUE(checked.has_value()) << checked.error().message();
}

TEST(CheckHeader, RefusesAHalfMadeFile) {
  expect_refused({"magic 0", [](TablesHeader& h) { h.magic = 0; }}, ErrorCode::shard_damaged,
                 "magic");
  expect_refused({"magic", [](TablesHeader& h) { h.magic = kTablesMagic + 1; }},
                 ErrorCode::shard_damaged, "magic");
}

TEST(CheckHeader, RefusesAnotherLayoutWithBothVersions) {
  const HeaderChange changes[] = {
      {"older", [](TablesHeader& h) { h.layout_version = kLayoutVersion - 1; }},
      {"newer", [](TablesHeader& h) { h.layout_version = kLayoutVersion + 1; }},
      {"header_bytes", [](TablesHeader& h) { h.header_bytes += 8; }},
      {"layout_fingerprint", [](TablesHeader& h) { h.layout_fingerprint += 1; }},
  };
  for (const HeaderChange& change : changes) {
    expect_refused(change, ErrorCode::unsupported_version, "layout");
  }
  const auto header = good_header();
  header->layout_version = 77;
  const std::string message = check_header(*header).error().message();
  EXPECT_NE(message.find("found version 77, need " + std::to_string(kLayoutVersion)),
            std::string::npos)
      << message;
}

TEST(CheckHeader, RefusesCapacitiesThatContradictEachOther) {
  const HeaderChange changes[] = {
      {"no slots", [](TablesHeader& h) { h.capacities.slot_count = 0; }},
      {"more slots than half the index",
       [](TablesHeader& h) { h.capacities.slot_count = h.capacities.index_count / 2 + 1; }},
      {"too many slots", [](TablesHeader& h) { h.capacities.slot_count = (1u << 30) + 1; }},
      {"index no power of two", [](TablesHeader& h) { h.capacities.index_count += 1; }},
      {"no index", [](TablesHeader& h) { h.capacities.index_count = 0; }},
      {"index too small", [](TablesHeader& h) { h.capacities.index_count /= 2; }},
      {"ledger no larger than slots",
       [](TablesHeader& h) { h.capacities.ledger_count = h.capacities.slot_count; }},
      {"ledger too large", [](TablesHeader& h) { h.capacities.ledger_count = (1u << 30) + 1; }},
      {"fewer kept heads than pins", [](TablesHeader& h) { h.capacities.kept_head_count = 4063; }},
      {"too many kept heads", [](TablesHeader& h) { h.capacities.kept_head_count = ~0u; }},
      {"no pages", [](TablesHeader& h) { h.capacities.page_count = 0; }},
      {"pages whose pins overflow", [](TablesHeader& h) { h.capacities.page_count = 1u << 22; }},
  };
  for (const HeaderChange& change : changes) {
    expect_refused(change, ErrorCode::shard_damaged, "capacities");
  }
}

TEST(CheckHeader, RefusesEachSizeOfTheGeometryChanged) {
  const HeaderChange changes[] = {
      {"chunk_count", [](TablesHeader& h) { h.capacities.chunk_count += 1; }},
      {"layer_count", [](TablesHeader& h) { h.geometry.layer_count += 1; }},
      {"no layers", [](TablesHeader& h) { h.geometry.layer_count = 0; }},
      {"chunk_tokens", [](TablesHeader& h) { h.geometry.chunk_tokens += 1; }},
      {"no chunk_tokens", [](TablesHeader& h) { h.geometry.chunk_tokens = 0; }},
      {"key_row_bytes", [](TablesHeader& h) { h.geometry.key_row_bytes += 1; }},
      {"no key_row_bytes", [](TablesHeader& h) { h.geometry.key_row_bytes = 0; }},
      {"key_row_bytes wraps", [](TablesHeader& h) { h.geometry.key_row_bytes += 1ull << 63; }},
      {"value_row_bytes", [](TablesHeader& h) { h.geometry.value_row_bytes -= 1; }},
      {"value_row_bytes wraps", [](TablesHeader& h) { h.geometry.value_row_bytes += 1ull << 63; }},
      {"chunk_bytes", [](TablesHeader& h) { h.geometry.chunk_bytes -= 1; }},
      {"chunk_stride_bytes", [](TablesHeader& h) { h.geometry.chunk_stride_bytes += kPageBytes; }},
      {"extent_bytes", [](TablesHeader& h) { h.geometry.extent_bytes += 1; }},
      {"extent smaller than a chunk", [](TablesHeader& h) { h.geometry.extent_bytes = 4096; }},
      {"chunks_per_extent", [](TablesHeader& h) { h.geometry.chunks_per_extent += 1; }},
      {"extent_count", [](TablesHeader& h) { h.geometry.extent_count += 1; }},
      {"no extents",
       [](TablesHeader& h) { h.geometry.extent_count = h.capacities.chunk_count = 0; }},
      {"extents that overflow", [](TablesHeader& h) { h.geometry.extent_count = ~0u; }},
  };
  for (const HeaderChange& change : changes) {
    expect_refused(change, ErrorCode::shard_damaged, "geometry");
  }
}

TEST(CheckHeader, RefusesFileSizesThatAreNotThoseOfTheCapacities) {
  const HeaderChange changes[] = {
      {"tables_bytes", [](TablesHeader& h) { h.tables_bytes += kPageBytes; }},
      {"arena_bytes", [](TablesHeader& h) { h.arena_bytes -= 1; }},
      {"pages_bytes", [](TablesHeader& h) { h.pages_bytes += 1; }},
      {"more ledger records", [](TablesHeader& h) { h.capacities.ledger_count += 1000; }},
      {"more kept heads", [](TablesHeader& h) { h.capacities.kept_head_count += 1000; }},
      {"fewer pages", [](TablesHeader& h) { h.capacities.page_count -= 1; }},
      {"larger index", [](TablesHeader& h) { h.capacities.index_count *= 2; }},
      {"fewer slots", [](TablesHeader& h) { h.capacities.slot_count /= 2; }},
  };
  for (const HeaderChange& change : changes) {
    expect_refused(change, ErrorCode::shard_damaged, "file sizes");
  }
}

TEST(RecipeRecord, GivesBackTheRecipe) {
  const Recipe recipe = *Recipe::make(llama_fields());
  const auto decoded = decode_recipe(encode_recipe(recipe), default_certified_architectures());
  ASSERT_TRUE(decoded.has_value()) << decoded.error().message();
  EXPECT_EQ(*decoded, recipe);
  EXPECT_EQ(decoded->canonical_text(), recipe.canonical_text());
}

TEST(RecipeRecord, HoldsNamesThatFillTheirFields) {
  RecipeFields fields = llama_fields();
  fields.architecture = std::string(Recipe::kArchitectureBytesMax, 'a');
  fields.model_id = std::string(Recipe::kModelIdBytesMax, 'm');
  const std::vector<std::string> certified{fields.architecture};
  const Recipe recipe = *Recipe::make(fields, certified);
  EXPECT_EQ(*decode_recipe(encode_recipe(recipe), certified), recipe);
}

TEST(RecipeRecord, IsCheckedAsARecipeIs) {
  const RecipeRecord good = encode_recipe(*Recipe::make(llama_fields()));
  const auto refusal_of = [&](std::function<void(RecipeRecord&)> change) {
    RecipeRecord record = good;
    change(record);
    const auto decoded = decode_recipe(record, default_certified_architectures());
    return decoded ? Error{} : decoded.error();
  };
  EXPECT_EQ(refusal_of([](auto& r) { r.architecture[0] = 'L'; }).message(), Error{}.message())
      << "another spelling is the same architecture";
  EXPECT_EQ(refusal_of([](auto& r) { r.architecture[0] = 'x'; }).code,
            ErrorCode::uncertified_architecture);
  EXPECT_EQ(refusal_of([](auto& r) { r.architecture[0] = '\0'; }).object, "architecture");
  EXPECT_EQ(refusal_of([](auto& r) { r.model_id[0] = '\0'; }).object, "model_id");
  EXPECT_EQ(refusal_of([](auto& r) { std::end(r.architecture)[-1] = 'x'; }).object, "architecture");
  EXPECT_EQ(refusal_of([](auto& r) { std::end(r.model_id)[-1] = 'x'; }).object, "model_id");
  EXPECT_EQ(refusal_of([](auto& r) { r.dtype = 77; }).object, "dtype");
  EXPECT_EQ(refusal_of([](auto& r) { r.kv_heads = ~0u; }).object, "kv_heads");
  EXPECT_EQ(refusal_of([](auto& r) { r.key_dim = 0; }).object, "key_dim");
  EXPECT_EQ(refusal_of([](auto& r) { r.value_dim = ~0u; }).object, "value_dim");
  EXPECT_EQ(refusal_of([](auto& r) { r.first_layer = 9; }).object, "layers");
  EXPECT_EQ(refusal_of([](auto& r) { r.last_layer = ~0u; }).object, "layers.last");
}

TEST(GeometryRecord, GivesBackTheGeometry) {
  const Shard shard;
  EXPECT_EQ(decode_geometry(encode_geometry(shard.geometry)), shard.geometry);
}

TEST(CapacitiesFor, LeaveRoomForEverythingThatCanBeAtOnce) {
  const Geometry geometry = Shard{}.geometry;
  for (const std::uint32_t contexts : {1u, 7u, 4096u, 1'000'000u}) {
    for (const std::uint32_t tombstones : {0u, 1u, 16384u}) {
      const Capacities c = capacities_for(contexts, tombstones, 256, geometry);
      EXPECT_GT(c.slot_count, contexts);
      EXPECT_TRUE(std::has_single_bit(c.index_count));
      EXPECT_GE(c.index_count / 2, c.slot_count);
      EXPECT_GE(c.ledger_count, c.slot_count + tombstones);
      EXPECT_GT(c.ledger_count, c.slot_count);
      EXPECT_GT(c.kept_head_count, c.page_count * kPinsPerPage);
      EXPECT_EQ(c.chunk_count, geometry.chunk_count);
    }
  }
}

TEST(FileLayout, PartsAreAlignedDisjointAndWithinTheFiles) {
  const Geometry geometry = Shard{}.geometry;
  for (const std::uint32_t contexts : {1u, 63u, 64u, 5000u}) {
    const Capacities c = capacities_for(contexts, contexts, 3, geometry);
    const FileLayout layout = FileLayout::of(c, geometry);
    const struct {
      ByteOffset begin;
      std::uint64_t bytes;
    } parts[] = {
        {ByteOffset{0}, sizeof(TablesHeader)},
        {layout.slots, std::uint64_t{c.slot_count} * sizeof(SlotRecord)},
        {layout.index, std::uint64_t{c.index_count} * sizeof(IndexEntry)},
        {layout.ledger, std::uint64_t{c.ledger_count} * sizeof(LedgerRecord)},
        {layout.chunk_words, std::uint64_t{c.chunk_count} * sizeof(AtomicWord)},
        {layout.chunk_seals, std::uint64_t{c.chunk_count} * sizeof(AtomicWord)},
        {layout.kept_heads, std::uint64_t{c.kept_head_count} * sizeof(KeptHeadRecord)},
        {layout.page_records, std::uint64_t{c.page_count} * sizeof(PageRecord)},
        {layout.extent_bits, extent_words(geometry.extent_count) * sizeof(AtomicWord)},
    };
    std::uint64_t end = 0;
    for (const auto& part : parts) {
      EXPECT_EQ(part.begin.value() % kPageBytes, 0u);
      EXPECT_GE(part.begin.value(), end);
      end = part.begin.value() + part.bytes;
    }
    EXPECT_LE(end, layout.tables_bytes);
    EXPECT_LT(layout.tables_bytes - end, kPageBytes);

    EXPECT_GE(layout.chunks.value(), std::uint64_t{c.slot_count} * sizeof(LengthLine));
    EXPECT_EQ(layout.chunks.value() % kHugePageBytes, 0u);
    EXPECT_EQ(layout.arena_bytes,
              layout.chunks.value() + geometry.extent_count * geometry.extent_bytes);

    EXPECT_GE(layout.client_pages.value(), std::uint64_t{c.slot_count} * sizeof(TouchWord));
    EXPECT_EQ(layout.client_page(PageIndex{0}), layout.client_pages);
    EXPECT_EQ(layout.client_page(PageIndex{1}).value() - layout.client_page(PageIndex{0}).value(),
              sizeof(ClientPage));
    EXPECT_EQ(layout.client_page(PageIndex{c.page_count}).value(), layout.pages_bytes);
    EXPECT_EQ(layout.client_pages.value() % kPageBytes, 0u) << "each client maps its own page";
  }
}

TEST(SlotState, NumbersOfRetiringSlotsAreNoOtherState) {
  const auto first = kRetiringBase + static_cast<std::uint32_t>(MissReason::unknown_session);
  EXPECT_GT(first, static_cast<std::uint32_t>(SlotState::worn_out));
}

}  // namespace
}  // namespace hotkv
