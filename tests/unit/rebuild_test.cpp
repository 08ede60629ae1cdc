// A daemon takes over a shard in which any one word can be damaged.

#include "daemon/core/rebuild.hpp"

#include <gtest/gtest.h>

#include <cstring>
#include <string>

#include "tests/unit/rebuild_harness.hpp"

namespace hotkv::test {
namespace {

class Rebuild : public RebuildHarness {};

// FR-110: what a restarted daemon says is there can be read.
TEST_F(Rebuild, AHealthyShardIsAdoptedAsItWas) {
  expect_adoption("");
  EXPECT_EQ(reader.wrong_bytes("c", 3, view, std::vector<std::uint32_t>(38, 1)), 0u);
  EXPECT_TRUE(worker.resolve("ended", 3, 5).error().is(MissReason::released));
  EXPECT_TRUE(worker.open("ended", 2).error().is(ErrorCode::stale_epoch));
}

TEST_F(Rebuild, AnAdoptionCanBeAdopted) {
  for (int i = 0; i < 3; ++i) expect_adoption("");
}

TEST_F(Rebuild, HoldersAndPinsComeBackWithTheirPages) {
  ASSERT_TRUE(adopt().has_value());
  EXPECT_EQ(h.core->contexts().at(0).holder, worker.client.page);
  EXPECT_EQ(h.core->status().shards.at(0).kept_heads, 1u);
  // Whoever is gone by then counts for nothing.
  h.liveness.gone = {{core::ShardId{1}, worker.client.page},
                     {core::ShardId{1}, reader.client.page}};
  ASSERT_TRUE(adopt().has_value());
  h.core->tick();
  EXPECT_EQ(h.core->contexts().at(0).holder, std::nullopt);
  EXPECT_EQ(h.core->status().shards.at(0).kept_heads, 0u);
  EXPECT_EQ(h.core->status().shards.at(0).clients, 0u);
  EXPECT_EQ(h.core->verify(), std::nullopt);
}

// The epochs are tests of their own.
TEST_F(Rebuild, AnyWordOfASlotCanBeDamaged) {
  for (const auto& [name, length] : lengths) {
    damage_every_word(name, slot_offset(slot_of(name).value()), sizeof(SlotRecord), {8, 12});
    if (HasFatalFailure()) return;
  }
}

TEST_F(Rebuild, AWholeSlotCanBeRandomBytes) {
  damage_whole_record("b", slot_offset(slot_of("b").value()), sizeof(SlotRecord));
  damage_whole_record("", slot_offset(20), sizeof(SlotRecord));  // one that was never used
}

// The generation after the greatest number would be 0, and numbers would repeat from there on.
TEST_F(Rebuild, AGenerationBeyondAllOthersDoesNotBeginAgainAtZero) {
  const SlotIndex slot = slot_of("c");
  tables().slot(slot).head =
      HeadWord{Generation{~0u}, load_head(tables().slot(slot).head).tip}.bits();
  ASSERT_TRUE(adopt().has_value());
  EXPECT_NE(load_head(tables().slot(slot).head).generation, Generation{0});
}

// Killed in the middle of an eviction: what the miss says stands in the ledger by then.
TEST_F(Rebuild, AnEndThatHadBegunKeepsItsReason) {
  for (const bool is_retiring : {false, true}) {
    SCOPED_TRACE(is_retiring);
    load(healthy);
    for (LedgerRecord& record : tables().ledger()) {
      if (core::read_session_id(record.id_bytes, record.id) == id("b")) {
        record.fate = static_cast<std::uint32_t>(MissReason::evicted_lru);
      }
    }
    if (is_retiring) {
      tables().slot(slot_of("b")).state =
          kRetiringBase + static_cast<std::uint32_t>(MissReason::evicted_lru);
    }
    ASSERT_TRUE(adopt().has_value());
    EXPECT_EQ(miss_of("b"), MissReason::evicted_lru);
    EXPECT_EQ(h.core->status().shards.at(0).tombstones, 2u);  // "ended", too
    EXPECT_TRUE(worker.open("b", 3).has_value());
    EXPECT_EQ(h.core->verify(), std::nullopt);
  }
}

TEST_F(Rebuild, AnyWordOfALedgerRecordCanBeDamaged) {
  // Records are taken in the order of first opening.
  std::uint32_t record = 0;
  for (const char* name : {"a", "b", "c", "d"}) {
    damage_every_word(name, ledger_offset(record++), sizeof(LedgerRecord), {8, 12});
    if (HasFatalFailure()) return;
  }
  damage_whole_record("b", ledger_offset(1), sizeof(LedgerRecord));
}

TEST_F(Rebuild, AnyIndexEntryCanBeDamaged) {
  for (std::uint32_t i = 0; i < tables().capacities().index_count; ++i) {
    for (const std::uint64_t value :
         {std::uint64_t{0}, ~std::uint64_t{0}, std::uint64_t{random()}}) {
      load(healthy);
      tables().index()[i] = value;
      expect_adoption("");
      if (HasFatalFailure()) return;
    }
  }
}

TEST_F(Rebuild, AnyChunkWordCanBeDamaged) {
  for (const auto& [name, length] : lengths) {
    const auto now = worker.resolve(name, 3, length).value();
    worker.unpin(now);
    for (const ChunkIndex chunk : now.chunks) {
      // Values that lead into another context's chain are a test of their own.
      for (const ChunkWord word :
           {ChunkWord{std::nullopt, 1}, ChunkWord{chunk, 1}, ChunkWord{ChunkIndex{31}, 1},
            ChunkWord{ChunkIndex{1'000'000}, 1}, ChunkWord{std::nullopt, ~0u},
            ChunkWord::from_bits(~std::uint64_t{0})}) {
        SCOPED_TRACE(testing::Message() << name << " chunk " << chunk.value());
        load(healthy);
        tables().chunk_word(chunk) = word.bits();
        expect_adoption(name);
        if (HasFatalFailure()) return;
      }
    }
  }
}

TEST_F(Rebuild, AnyKeptHeadCanBeDamaged) {
  const std::size_t offset = layout().kept_heads.value();
  damage_every_word("", offset, sizeof(KeptHeadRecord));
  damage_whole_record("", offset, sizeof(KeptHeadRecord));
  damage_whole_record("", offset + 100 * sizeof(KeptHeadRecord), sizeof(KeptHeadRecord));
}

TEST_F(Rebuild, AnyPageRecordCanBeDamaged) {
  const std::size_t offset = layout().page_records.value();
  // A page whose state is lost is free: its pins are gone and its leases are nobody's.
  damage_every_word("", offset + sizeof(PageRecord), sizeof(PageRecord));
  damage_whole_record("", offset + sizeof(PageRecord), sizeof(PageRecord));
}

// What clients write can be anything.
TEST_F(Rebuild, AnyLengthWordCanBeScribbledOn) {
  for (const auto& [name, length] : lengths) {
    AtomicWord& word = tables().length_word(slot_of(name));
    const auto generation = load_head(tables().slot(slot_of(name)).head).generation.value();
    for (const std::uint64_t value :
         {std::uint64_t{0}, ~std::uint64_t{0},
          LengthWord{Generation{generation}, TokenCount{~0u}}.bits(),
          LengthWord{Generation{generation + 1}, TokenCount{~0u}}.bits(),
          LengthWord{Generation{generation + 1}, TokenCount{17}}.bits(),
          LengthWord{Generation{generation + 1}, TokenCount{0}}.bits(),
          LengthWord{Generation{generation - 1}, TokenCount{1}}.bits(), std::uint64_t{random()}}) {
      SCOPED_TRACE(name);
      load(healthy);
      word = value;
      expect_adoption(name);
      if (HasFatalFailure()) return;
    }
  }
}

TEST_F(Rebuild, WildPagesOfClientsOnlyKeep) {
  for (int round = 0; round < 20; ++round) {
    load(healthy);
    const std::size_t first = layout().client_pages.value();
    for (std::size_t i = 0; i < first + sizeof(ClientPage); ++i) {
      if (i >= 64 * 4 && i < first) continue;
      memory().pages[i] = static_cast<std::byte>(random());
    }
    ASSERT_TRUE(adopt().has_value());
    ASSERT_EQ(h.core->verify(), std::nullopt);
    EXPECT_EQ(h.core->contexts().size(), lengths.size());
  }
}

TEST_F(Rebuild, ExtentsWithoutMemoryTakeTheirContextsAlong) {
  const auto chunk = worker.resolve("d", 3, 47)->chunks.at(1);
  const auto lose_its_memory = [&] {
    AtomicWord& bits = tables().extent_bits()[chunk.value() / 64];
    bits = bits & ~(std::uint64_t{1} << chunk.value() % 64);
  };
  lose_its_memory();
  expect_adoption("d");
  load(healthy);
  lose_its_memory();
  ASSERT_TRUE(adopt().has_value());
  const auto miss = worker.resolve("d", 3, 47).error();
  ASSERT_TRUE(miss.is(MissReason::lost_in_restart));
  EXPECT_EQ(miss.miss().known_length, TokenCount{0});
}

}  // namespace
}  // namespace hotkv::test
