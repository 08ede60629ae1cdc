// Literal bytes of the structs that shared memory is made of. A struct that changes fails here, so
// that the change is meant.

#include "shared/layout.hpp"

#include <gtest/gtest.h>

#include <memory>
#include <string>

#include "tests/golden/golden_bytes.hpp"

namespace hotkv {
namespace {

using namespace golden;

constexpr const char* kBumpLayout =
    "the layout of shared memory changed: bump kLayoutVersion in shared/layout.hpp and write the "
    "new bytes here; the next restart of the daemon is a cold one";

Capacities filled_capacities() {
  Capacities record{};
  record.slot_count = 0xcccb'cac9;
  record.index_count = 0xd0cf'cecd;
  record.ledger_count = 0xd4d3'd2d1;
  record.kept_head_count = 0xd8d7'd6d5;
  record.page_count = 0xdcdb'dad9;
  record.chunk_count = 0x01df'dedd;
  return record;
}

GeometryRecord filled_geometry_record() {
  GeometryRecord record{};
  record.layer_count = 0x1514'1312;
  record.chunk_tokens = 0x1918'1716;
  record.key_row_bytes = 0x2120'1f1e'1d1c'1b1a;
  record.value_row_bytes = 0x2928'2726'2524'2322;
  record.chunk_bytes = 0x3130'2f2e'2d2c'2b2a;
  record.chunk_stride_bytes = 0x3938'3736'3534'3332;
  record.extent_bytes = 0x4140'3f3e'3d3c'3b3a;
  record.chunks_per_extent = 0x4544'4342;
  record.extent_count = 0x4948'4746;
  return record;
}

constexpr Place kPlaces[] = {
    {"SlotRecord.head", offsetof(SlotRecord, head), 0},
    {"SlotRecord.epoch", offsetof(SlotRecord, epoch), 8},
    {"SlotRecord.id_bytes", offsetof(SlotRecord, id_bytes), 16},
    {"SlotRecord.state", offsetof(SlotRecord, state), 20},
    {"SlotRecord.holder", offsetof(SlotRecord, holder), 24},
    {"SlotRecord.reserved0", offsetof(SlotRecord, reserved0), 28},
    {"SlotRecord.opened_ms", offsetof(SlotRecord, opened_ms), 32},
    {"SlotRecord.used_ms", offsetof(SlotRecord, used_ms), 40},
    {"SlotRecord.seals", offsetof(SlotRecord, seals), 48},
    {"SlotRecord.id", offsetof(SlotRecord, id), 64},
    {"sizeof(SlotRecord)", sizeof(SlotRecord), 192},
    {"LedgerRecord.state", offsetof(LedgerRecord, state), 0},
    {"LedgerRecord.id_bytes", offsetof(LedgerRecord, id_bytes), 4},
    {"LedgerRecord.epoch", offsetof(LedgerRecord, epoch), 8},
    {"LedgerRecord.fate", offsetof(LedgerRecord, fate), 16},
    {"LedgerRecord.last_length", offsetof(LedgerRecord, last_length), 20},
    {"LedgerRecord.ended_ms", offsetof(LedgerRecord, ended_ms), 24},
    {"LedgerRecord.reserved", offsetof(LedgerRecord, reserved), 32},
    {"LedgerRecord.id", offsetof(LedgerRecord, id), 64},
    {"sizeof(LedgerRecord)", sizeof(LedgerRecord), 192},
    {"KeptHeadRecord.head", offsetof(KeptHeadRecord, head), 0},
    {"KeptHeadRecord.slot", offsetof(KeptHeadRecord, slot), 8},
    {"KeptHeadRecord.reserved", offsetof(KeptHeadRecord, reserved), 12},
    {"sizeof(KeptHeadRecord)", sizeof(KeptHeadRecord), 16},
    {"PageRecord.state", offsetof(PageRecord, state), 0},
    {"PageRecord.access", offsetof(PageRecord, access), 4},
    {"PageRecord.cookie", offsetof(PageRecord, cookie), 8},
    {"PageRecord.pid", offsetof(PageRecord, pid), 16},
    {"PageRecord.reserved", offsetof(PageRecord, reserved), 20},
    {"sizeof(PageRecord)", sizeof(PageRecord), 32},
    {"RecipeRecord.architecture", offsetof(RecipeRecord, architecture), 0},
    {"RecipeRecord.model_id", offsetof(RecipeRecord, model_id), 64},
    {"RecipeRecord.dtype", offsetof(RecipeRecord, dtype), 192},
    {"RecipeRecord.kv_heads", offsetof(RecipeRecord, kv_heads), 196},
    {"RecipeRecord.key_dim", offsetof(RecipeRecord, key_dim), 200},
    {"RecipeRecord.value_dim", offsetof(RecipeRecord, value_dim), 204},
    {"RecipeRecord.first_layer", offsetof(RecipeRecord, first_layer), 208},
    {"RecipeRecord.last_layer", offsetof(RecipeRecord, last_layer), 212},
    {"sizeof(RecipeRecord)", sizeof(RecipeRecord), 216},
    {"Capacities.slot_count", offsetof(Capacities, slot_count), 0},
    {"Capacities.index_count", offsetof(Capacities, index_count), 4},
    {"Capacities.ledger_count", offsetof(Capacities, ledger_count), 8},
    {"Capacities.kept_head_count", offsetof(Capacities, kept_head_count), 12},
    {"Capacities.page_count", offsetof(Capacities, page_count), 16},
    {"Capacities.chunk_count", offsetof(Capacities, chunk_count), 20},
    {"sizeof(Capacities)", sizeof(Capacities), 24},
    {"GeometryRecord.layer_count", offsetof(GeometryRecord, layer_count), 0},
    {"GeometryRecord.chunk_tokens", offsetof(GeometryRecord, chunk_tokens), 4},
    {"GeometryRecord.key_row_bytes", offsetof(GeometryRecord, key_row_bytes), 8},
    {"GeometryRecord.value_row_bytes", offsetof(GeometryRecord, value_row_bytes), 16},
    {"GeometryRecord.chunk_bytes", offsetof(GeometryRecord, chunk_bytes), 24},
    {"GeometryRecord.chunk_stride_bytes", offsetof(GeometryRecord, chunk_stride_bytes), 32},
    {"GeometryRecord.extent_bytes", offsetof(GeometryRecord, extent_bytes), 40},
    {"GeometryRecord.chunks_per_extent", offsetof(GeometryRecord, chunks_per_extent), 48},
    {"GeometryRecord.extent_count", offsetof(GeometryRecord, extent_count), 52},
    {"sizeof(GeometryRecord)", sizeof(GeometryRecord), 56},
    {"TablesHeader.magic", offsetof(TablesHeader, magic), 0},
    {"TablesHeader.layout_version", offsetof(TablesHeader, layout_version), 8},
    {"TablesHeader.header_bytes", offsetof(TablesHeader, header_bytes), 12},
    {"TablesHeader.layout_fingerprint", offsetof(TablesHeader, layout_fingerprint), 16},
    {"TablesHeader.boot_token", offsetof(TablesHeader, boot_token), 24},
    {"TablesHeader.state", offsetof(TablesHeader, state), 32},
    {"TablesHeader.owner_uid", offsetof(TablesHeader, owner_uid), 36},
    {"TablesHeader.hash_key", offsetof(TablesHeader, hash_key), 40},
    {"TablesHeader.recipe", offsetof(TablesHeader, recipe), 56},
    {"TablesHeader.capacities", offsetof(TablesHeader, capacities), 272},
    {"TablesHeader.geometry", offsetof(TablesHeader, geometry), 296},
    {"TablesHeader.tables_bytes", offsetof(TablesHeader, tables_bytes), 352},
    {"TablesHeader.arena_bytes", offsetof(TablesHeader, arena_bytes), 360},
    {"TablesHeader.pages_bytes", offsetof(TablesHeader, pages_bytes), 368},
    {"TablesHeader.arena_inode", offsetof(TablesHeader, arena_inode), 376},
    {"TablesHeader.pages_inode", offsetof(TablesHeader, pages_inode), 384},
    {"TablesHeader.checksum", offsetof(TablesHeader, checksum), 392},
    {"sizeof(TablesHeader)", sizeof(TablesHeader), 400},
    {"LengthLine.word", offsetof(LengthLine, word), 0},
    {"LengthLine.reserved", offsetof(LengthLine, reserved), 8},
    {"sizeof(LengthLine)", sizeof(LengthLine), 64},
};

TEST(LayoutGolden, FieldsStandWhereTheyStood) {
  for (const Place& place : kPlaces) {
    EXPECT_EQ(place.actual, place.expected) << place.what << ": " << kBumpLayout;
  }
}

TEST(LayoutGolden, Version) {
  EXPECT_EQ(kLayoutVersion, 3u) << "bumped: the bytes in this file are those of the new version?";
  EXPECT_EQ(hex_of(kTablesMagic), "686f746b7674626c") << "hotkvtbl";
  EXPECT_EQ(kLayoutFingerprint, 0x8db6'd62c'e05b'9b40u) << kBumpLayout;
}

TEST(LayoutGolden, Words) {
  EXPECT_EQ((HeadWord{Generation{7}, Tip::at(ChunkIndex{5})}.bits()), 0x0000'0007'0000'0007u)
      << kBumpLayout;
  EXPECT_EQ((HeadWord{Generation{7}, Tip::empty()}.bits()), 0x0000'0007'0000'0001u) << kBumpLayout;
  EXPECT_EQ((HeadWord{Generation{7}, Tip::free()}.bits()), 0x0000'0007'0000'0000u) << kBumpLayout;
  EXPECT_EQ((LengthWord{Generation{7}, TokenCount{9}}.bits()), 0x0000'0007'0000'0009u)
      << kBumpLayout;
  EXPECT_EQ((PinWord{SlotIndex{4}, Generation{7}}.bits()), 0x0000'0005'0000'0007u) << kBumpLayout;
  EXPECT_EQ((ChunkWord{ChunkIndex{4}, 9}.bits()), 0x0000'0005'0000'0009u) << kBumpLayout;
  EXPECT_EQ((ChunkWord{std::nullopt, 9}.bits()), 0x0000'0000'0000'0009u) << kBumpLayout;
  EXPECT_EQ(touch_ticks(1'600'000), 100'000u) << kBumpLayout;
}

TEST(LayoutGolden, NumbersOfStates) {
  EXPECT_EQ(static_cast<std::uint32_t>(SlotState::free), 0u) << kBumpLayout;
  EXPECT_EQ(static_cast<std::uint32_t>(SlotState::opening), 1u) << kBumpLayout;
  EXPECT_EQ(static_cast<std::uint32_t>(SlotState::live), 2u) << kBumpLayout;
  EXPECT_EQ(static_cast<std::uint32_t>(SlotState::worn_out), 3u) << kBumpLayout;
  EXPECT_EQ(kRetiringBase, 16u) << kBumpLayout;
  EXPECT_EQ(static_cast<std::uint32_t>(PageState::free), 0u) << kBumpLayout;
  EXPECT_EQ(static_cast<std::uint32_t>(PageState::taken), 1u) << kBumpLayout;
  EXPECT_EQ(static_cast<std::uint32_t>(ShardState::open), 1u) << kBumpLayout;
  EXPECT_EQ(static_cast<std::uint32_t>(ShardState::closed), 2u) << kBumpLayout;
  EXPECT_EQ(static_cast<std::uint32_t>(MissReason::unknown_session), 1u) << kBumpLayout;
  EXPECT_EQ(static_cast<std::uint32_t>(MissReason::lost_in_restart), 9u) << kBumpLayout;
}

TEST(LayoutGolden, ClientPage) {
  // Two pages long: its fields, and where the first and the last pin word stand.
  const auto page = std::make_unique<ClientPage>();
  page->high_water = 0x0403'0201;
  page->pins[0] = 0x0807'0605'0403'0201;
  page->pins[kPinsPerPage - 1] = 0x1817'1615'1413'1211;
  const std::string hex = hex_of(*page);
  EXPECT_EQ(hex.size(), 2u * 8192) << kBumpLayout;
  EXPECT_EQ(hex.substr(0, 2 * 8), "0102030400000000") << kBumpLayout;
  EXPECT_EQ(hex.substr(2 * 64, 2 * 8), "0102030405060708") << kBumpLayout;
  EXPECT_EQ(hex.substr(2 * (8192 - 8)), "1112131415161718") << kBumpLayout;
}

TEST(LayoutGolden, SlotRecord) {
  SlotRecord record{};
  record.head = 0x0807'0605'0403'0201;
  record.epoch = 0x100f'0e0d'0c0b'0a09;
  record.id_bytes = 0x1413'1211;
  record.state = 0x1817'1615;
  record.holder = 0x1c1b'1a19;
  record.opened_ms = 0x2423'2221'201f'1e1d;
  record.used_ms = 0x2c2b'2a29'2827'2625;
  record.seals[0] = 0x3433'3231'302f'2e2d;
  record.seals[1] = 0x3c3b'3a39'3837'3635;
  put_words(record.id);
  EXPECT_EQ(hex_of(record),
            "0102030405060708"                                                  // head
            "090a0b0c0d0e0f10"                                                  // epoch
            "11121314"                                                          // id_bytes
            "15161718"                                                          // state
            "191a1b1c"                                                          // holder
            "00000000"                                                          // reserved0
            "1d1e1f2021222324"                                                  // opened_ms
            "25262728292a2b2c"                                                  // used_ms
            "2d2e2f303132333435363738393a3b3c"                                  // seals
            "e0000000000000f0e1000000000000f1e2000000000000f2e3000000000000f3"  // id
            "e4000000000000f4e5000000000000f5e6000000000000f6e7000000000000f7"
            "e8000000000000f8e9000000000000f9ea000000000000faeb000000000000fb"
            "ec000000000000fced000000000000fdee000000000000feef000000000000ff")
      << kBumpLayout;
}

TEST(LayoutGolden, LedgerRecord) {
  LedgerRecord record{};
  record.state = 0x2c2b'2a29;
  record.id_bytes = 0x302f'2e2d;
  record.epoch = 0x3837'3635'3433'3231;
  record.fate = 0x3c3b'3a39;
  record.last_length = 0x403f'3e3d;
  record.ended_ms = 0x4847'4645'4443'4241;
  put_words(record.id);
  EXPECT_EQ(hex_of(record),
            "292a2b2c"                                                          // state
            "2d2e2f30"                                                          // id_bytes
            "3132333435363738"                                                  // epoch
            "393a3b3c"                                                          // fate
            "3d3e3f40"                                                          // last_length
            "4142434445464748"                                                  // ended_ms
            "0000000000000000000000000000000000000000000000000000000000000000"  // reserved
            "e0000000000000f0e1000000000000f1e2000000000000f2e3000000000000f3"  // id
            "e4000000000000f4e5000000000000f5e6000000000000f6e7000000000000f7"
            "e8000000000000f8e9000000000000f9ea000000000000faeb000000000000fb"
            "ec000000000000fced000000000000fdee000000000000feef000000000000ff")
      << kBumpLayout;
}

TEST(LayoutGolden, KeptHeadRecord) {
  KeptHeadRecord record{};
  record.head = 0x5857'5655'5453'5251;
  record.slot = 0x5c5b'5a59;
  EXPECT_EQ(hex_of(record),
            "5152535455565758"  // head
            "595a5b5c"          // slot
            "00000000"          // reserved
            )
      << kBumpLayout;
}

TEST(LayoutGolden, PageRecord) {
  PageRecord record{};
  record.state = 0x7c7b'7a79;
  record.access = 0x807f'7e7d;
  record.cookie = 0x8887'8685'8483'8281;
  record.pid = 0x8c8b'8a89;
  EXPECT_EQ(hex_of(record),
            "797a7b7c"                  // state
            "7d7e7f80"                  // access
            "8182838485868788"          // cookie
            "898a8b8c"                  // pid
            "000000000000000000000000"  // reserved
            )
      << kBumpLayout;
}

TEST(LayoutGolden, RecipeRecord) {
  const RecipeRecord record = filled_recipe_record();
  EXPECT_EQ(hex_of(record),
            "6c6c616d61000000000000000000000000000000000000000000000000000000"  // architecture
            "0000000000000000000000000000000000000000000000000000000000000000"
            "6c6c616d612d332d386200000000000000000000000000000000000000000000"  // model_id
            "0000000000000000000000000000000000000000000000000000000000000000"
            "0000000000000000000000000000000000000000000000000000000000000000"
            "0000000000000000000000000000000000000000000000000000000000000000"
            "a1a2a3a4"  // dtype
            "a5a6a7a8"  // kv_heads
            "a9aaabac"  // key_dim
            "adaeafb0"  // value_dim
            "b1b2b3b4"  // first_layer
            "b5b6b7b8"  // last_layer
            )
      << kBumpLayout;
}

TEST(LayoutGolden, Capacities) {
  const Capacities record = filled_capacities();
  EXPECT_EQ(hex_of(record),
            "c9cacbcc"  // slot_count
            "cdcecfd0"  // index_count
            "d1d2d3d4"  // ledger_count
            "d5d6d7d8"  // kept_head_count
            "d9dadbdc"  // page_count
            "dddedf01"  // chunk_count
            )
      << kBumpLayout;
}

TEST(LayoutGolden, GeometryRecord) {
  const GeometryRecord record = filled_geometry_record();
  EXPECT_EQ(hex_of(record),
            "12131415"          // layer_count
            "16171819"          // chunk_tokens
            "1a1b1c1d1e1f2021"  // key_row_bytes
            "2223242526272829"  // value_row_bytes
            "2a2b2c2d2e2f3031"  // chunk_bytes
            "3233343536373839"  // chunk_stride_bytes
            "3a3b3c3d3e3f4041"  // extent_bytes
            "42434445"          // chunks_per_extent
            "46474849"          // extent_count
            )
      << kBumpLayout;
}

TEST(LayoutGolden, TablesHeader) {
  TablesHeader record{};
  record.magic = 0x4140'3f3e'3d3c'3b3a;
  record.layout_version = 0x4544'4342;
  record.header_bytes = 0x4948'4746;
  record.layout_fingerprint = 0x5150'4f4e'4d4c'4b4a;
  record.boot_token = 0x5958'5756'5554'5352;
  record.state = 0x5d5c'5b5a;
  record.owner_uid = 0x6160'5f5e;
  record.hash_key[0] = 0x6968'6766'6564'6362;
  record.hash_key[1] = 0x7170'6f6e'6d6c'6b6a;
  record.recipe = filled_recipe_record();
  record.capacities = filled_capacities();
  record.geometry = filled_geometry_record();
  record.tables_bytes = 0x7978'7776'7574'7372;
  record.arena_bytes = 0x8180'7f7e'7d7c'7b7a;
  record.pages_bytes = 0x8988'8786'8584'8382;
  record.arena_inode = 0x9190'8f8e'8d8c'8b8a;
  record.pages_inode = 0x9998'9796'9594'9392;
  record.checksum = 0xa1a0'9f9e'9d9c'9b9a;
  EXPECT_EQ(
      hex_of(record),
      "3a3b3c3d3e3f4041"                                                  // magic
      "42434445"                                                          // layout_version
      "46474849"                                                          // header_bytes
      "4a4b4c4d4e4f5051"                                                  // layout_fingerprint
      "5253545556575859"                                                  // boot_token
      "5a5b5c5d"                                                          // state
      "5e5f6061"                                                          // owner_uid
      "6263646566676869"                                                  // hash_key[0]
      "6a6b6c6d6e6f7071"                                                  // hash_key[1]
      "6c6c616d61000000000000000000000000000000000000000000000000000000"  // recipe.architecture
      "0000000000000000000000000000000000000000000000000000000000000000"
      "6c6c616d612d332d386200000000000000000000000000000000000000000000"  // recipe.model_id
      "0000000000000000000000000000000000000000000000000000000000000000"
      "0000000000000000000000000000000000000000000000000000000000000000"
      "0000000000000000000000000000000000000000000000000000000000000000"
      "a1a2a3a4"          // recipe.dtype
      "a5a6a7a8"          // recipe.kv_heads
      "a9aaabac"          // recipe.key_dim
      "adaeafb0"          // recipe.value_dim
      "b1b2b3b4"          // recipe.first_layer
      "b5b6b7b8"          // recipe.last_layer
      "c9cacbcc"          // capacities.slot_count
      "cdcecfd0"          // capacities.index_count
      "d1d2d3d4"          // capacities.ledger_count
      "d5d6d7d8"          // capacities.kept_head_count
      "d9dadbdc"          // capacities.page_count
      "dddedf01"          // capacities.chunk_count
      "12131415"          // geometry.layer_count
      "16171819"          // geometry.chunk_tokens
      "1a1b1c1d1e1f2021"  // geometry.key_row_bytes
      "2223242526272829"  // geometry.value_row_bytes
      "2a2b2c2d2e2f3031"  // geometry.chunk_bytes
      "3233343536373839"  // geometry.chunk_stride_bytes
      "3a3b3c3d3e3f4041"  // geometry.extent_bytes
      "42434445"          // geometry.chunks_per_extent
      "46474849"          // geometry.extent_count
      "7273747576777879"  // tables_bytes
      "7a7b7c7d7e7f8081"  // arena_bytes
      "8283848586878889"  // pages_bytes
      "8a8b8c8d8e8f9091"  // arena_inode
      "9293949596979899"  // pages_inode
      "9a9b9c9d9e9fa0a1"  // checksum
      )
      << kBumpLayout;
}

TEST(LayoutGolden, LengthLine) {
  LengthLine record{};
  record.word = 0x6968'6766'6564'6362;
  EXPECT_EQ(hex_of(record),
            "6263646566676869"                                                  // word
            "0000000000000000000000000000000000000000000000000000000000000000"  // reserved
            "000000000000000000000000000000000000000000000000")
      << kBumpLayout;
}

}  // namespace
}  // namespace hotkv
