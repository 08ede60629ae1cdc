// Whose a context and a chunk are, as a daemon that takes over damaged tables can tell.

#include <gtest/gtest.h>

#include <functional>
#include <string>
#include <utility>
#include <vector>

#include "tests/unit/rebuild_harness.hpp"

namespace hotkv::test {
namespace {

class RebuildWhose : public RebuildHarness {};

// Lower or higher than the ledger's: nobody opened it, and it makes no epoch stale.
TEST_F(RebuildWhose, AnotherEpochInASlotIsShownToNobody) {
  for (const std::uint64_t epoch : {2, 400}) {
    SCOPED_TRACE(epoch);
    load(healthy);
    tables().slot(slot_of("b")).epoch = epoch;
    ASSERT_TRUE(adopt().has_value());
    EXPECT_EQ(miss_of("b"), MissReason::lost_in_restart);
    EXPECT_TRUE(worker.resolve("b", epoch, 29)
                    .error()
                    .is(epoch < 3 ? MissReason::superseded_epoch : MissReason::unknown_session));
    EXPECT_TRUE(worker.open("b", 4).has_value());
    load(healthy);
    tables().slot(slot_of("b")).epoch = epoch;
    expect_adoption("b");
  }
}

TEST_F(RebuildWhose, ASlotOfASessionThatTheLedgerDoesNotKnowIsShownToNobody) {
  rename("b", "bb");
  ASSERT_TRUE(adopt().has_value());
  EXPECT_FALSE(worker.resolve("bb", 3, 29).has_value());
  EXPECT_FALSE(worker.resolve("b", 3, 29).has_value());
  EXPECT_EQ(h.core->verify(), std::nullopt);
}

TEST_F(RebuildWhose, AHigherEpochInTheLedgerThanInTheSlotIsSuperseded) {
  tables().ledger()[1].epoch = ~std::uint64_t{0};
  expect_adoption("b");
}

// It would show the other's bytes, and both would write into them.
TEST_F(RebuildWhose, AChainThatLeadsIntoAnothersIsLostAlone) {
  // Tip first: "a" and "b" have two chunks, "d" has three.
  const auto a = chain_of(slot_of("a"));
  const auto b = chain_of(slot_of("b"));
  const auto d = chain_of(slot_of("d"));
  const auto name_previous = [&](std::uint32_t chunk, ChunkWord word) {
    tables().chunk_word(ChunkIndex{chunk}) = word.bits();
  };
  const std::vector<std::pair<std::string, std::function<void()>>> damages = {
      {"b", [&] { name_tip("b", a.at(0)); }},
      {"a", [&] { name_tip("a", d.at(1)); }},
      {"d",
       [&] {
         name_previous(d[0], {ChunkIndex{a[0]}, 2});
       }},
      {"a",
       [&] {
         name_previous(a[0], {ChunkIndex{b.at(1)}, 1});
       }},
      {"c", [&] { tables().chunk_seal(ChunkIndex{chain_of(slot_of("c")).at(1)}) = 1; }}};
  for (const auto& [damaged, apply] : damages) {
    SCOPED_TRACE(damaged);
    load(healthy);
    apply();
    ASSERT_TRUE(adopt().has_value());
    EXPECT_EQ(h.core->verify(), std::nullopt);
    EXPECT_EQ(miss_of(damaged), MissReason::lost_in_restart);
    for (const auto& [name, length] : lengths) {
      if (name != damaged) {
        EXPECT_EQ(miss_of(name), std::nullopt) << name;
      }
    }
  }
}

// The chunks are its own and make sense; their rows are those of before it was truncated.
TEST_F(RebuildWhose, AnOlderChainOfTheContextIsShownToNobody) {
  ASSERT_TRUE(worker.append("c", 3, 8, 2).has_value());  // 38 again
  const Tip old = HeadWord::from_bits(tables().kept_heads()[0].head).tip;
  ASSERT_NE(old, load_head(tables().slot(slot_of("c")).head).tip);
  name_tip("c", old.chunk().value());
  ASSERT_TRUE(adopt().has_value());
  EXPECT_EQ(worker.resolve("c", 3, 38).error().miss().reason, MissReason::lost_in_restart);
  EXPECT_EQ(reader.wrong_bytes("c", 3, view, std::vector<std::uint32_t>(38, 1)), 0u);
  EXPECT_EQ(h.core->verify(), std::nullopt);
}

// Two words can make the slot live again that the context had before.
TEST_F(RebuildWhose, AFreeSlotHasNoSealThatCouldBringItBack) {
  const SlotIndex old = slot_of("b");
  ASSERT_TRUE(adopt().has_value());
  ASSERT_TRUE(worker.release("b", 3).has_value());
  SlotRecord& record = tables().slot(old);
  record.state = static_cast<std::uint32_t>(SlotState::live);
  record.head = record.head + 1;  // from free to empty
  ASSERT_TRUE(adopt().has_value());
  EXPECT_EQ(miss_of("b"), MissReason::released);
  EXPECT_EQ(h.core->verify(), std::nullopt);
}

TEST_F(RebuildWhose, OfTwoRecordsOfTheLedgerTheOneIsRightWhoseEpochIsSealed) {
  const std::string names = "abcde";  // records are taken in this order; the last is of "ended"
  for (const auto& [damaged, named] : {std::pair(1, 2), {2, 1}, {4, 1}, {4, 3}, {1, 3}}) {
    for (const std::uint64_t epoch : {3, 7}) {
      SCOPED_TRACE(testing::Message() << damaged << " as " << named << ", epoch " << epoch);
      load(healthy);
      LedgerRecord& record = tables().ledger()[static_cast<std::size_t>(damaged)];
      const LedgerRecord& other = tables().ledger()[static_cast<std::size_t>(named)];
      for (std::size_t i = 0; i < SessionId::kWords; ++i) record.id[i] = other.id[i].load();
      record.id_bytes = other.id_bytes.load();
      record.epoch = epoch;
      expect_adoption(damaged == 4 ? "" : names.substr(static_cast<std::size_t>(damaged), 1));
      if (HasFatalFailure()) return;
    }
  }
}

// The daemon that lives on seals the heads of what it opened, whatever the tables say by then.
TEST_F(RebuildWhose, ANameThatIsDamagedWhileTheDaemonLivesGetsNoSeal) {
  CoreClient dying(h, shard);
  ASSERT_TRUE(dying.open("e", 3).has_value());
  ASSERT_TRUE(dying.append("e", 3, 5).has_value());
  ASSERT_TRUE(dying.grant("e", 3, 40).has_value());
  const SlotRecord& record = rename("e", "a");
  const HeadWord before = load_head(record.head);
  dying.die();  // what was granted and not used is given back: a head is stored
  while (h.core->has_leases_to_end()) h.core->end_some_leases();
  EXPECT_GT(load_head(record.head).generation, before.generation);
  expect_adoption("");
}

// Killed anywhere in the middle, and begun again: what lives under that name is as it was.
TEST_F(RebuildWhose, ANameThatIsAnothersCostsThatOneNothingWhereverTheRebuildIsKilled) {
  struct Killed {};
  int kills = 0;
  for (bool was_killed = true; was_killed; kills += was_killed) {
    load(healthy);
    rename("b", "a");
    renew_core();
    h.core->set_store_probe([stores = kills]() mutable {
      if (stores-- == 0) throw Killed{};
    });
    was_killed = false;
    try {
      (void)h.core->adopt_shard(memory(), default_certified_architectures());
    } catch (const Killed&) {
      was_killed = true;
    }
    expect_adoption("b");
    if (HasFatalFailure()) return;
  }
  EXPECT_GT(kills, 3);
}

// Its place in the chain is as the damaged tip needs it, and its bytes are still there.
TEST_F(RebuildWhose, AChunkOfAnEndedContextIsShownToNobody) {
  const auto a = chain_of(slot_of("a"));
  ASSERT_TRUE(adopt().has_value());
  ASSERT_TRUE(worker.release("a", 3).has_value());
  name_tip("b", a.at(0));
  ASSERT_TRUE(adopt().has_value());
  EXPECT_EQ(miss_of("b"), MissReason::lost_in_restart);
  EXPECT_EQ(h.core->verify(), std::nullopt);
}

// The bytes are another context's: the ledger says of this one how it ended.
TEST_F(RebuildWhose, ASlotThatNamesASessionThatHasEndedIsShownToNobody) {
  ASSERT_TRUE(adopt().has_value());
  ASSERT_TRUE(worker.release("c", 3).has_value());
  rename("b", "c");
  ASSERT_TRUE(adopt().has_value());
  EXPECT_EQ(miss_of("c"), MissReason::released);
  EXPECT_NE(miss_of("b"), std::nullopt);
  EXPECT_EQ(h.core->verify(), std::nullopt);
}

// All records count as ended until their session is known to live.
TEST_F(RebuildWhose, AFullLedgerForgetsNoLiveSessionForADamagedRecord) {
  auto tight = limits();
  tight.tombstones = 1;  // 27 records
  CoreHarness full(tight);
  const auto id_of = full.add_shard();
  CoreClient client(full, id_of);
  ASSERT_TRUE(client.open("a", 1));
  ASSERT_TRUE(client.open("b", 1));
  for (std::uint32_t i = 0; i < full.tables(id_of).capacities().ledger_count; ++i) {
    ++full.now_ms;
    ASSERT_TRUE(client.open("x" + std::to_string(i), 1));
    ASSERT_TRUE(client.release("x" + std::to_string(i), 1));
  }
  full.tables(id_of).ledger()[1].id[0] = id("?").words()[0];
  full.restart();
  EXPECT_EQ(full.core->verify(), std::nullopt);
  ASSERT_EQ(full.core->contexts().size(), 1u);
  EXPECT_EQ(full.core->contexts().at(0).session, id("a"));
}

// The seal tells which of the two slots is the damaged one, whichever comes first.
TEST_F(RebuildWhose, OneContextInTwoSlotsIsShownFromItsOwn) {
  for (const auto& [damaged, named] : {std::pair("b", "a"), std::pair("a", "b")}) {
    SCOPED_TRACE(damaged);
    load(healthy);
    rename(damaged, named);
    expect_adoption(damaged);
    EXPECT_FALSE(worker.resolve(damaged, 3, lengths.at(damaged)).has_value());
  }
}

// Every rule but the seal's is kept: the ledger knows both, at this epoch, and they live.
TEST_F(RebuildWhose, TwoContextsWhoseNamesAreSwappedAreShownToNobody) {
  SlotRecord& one = tables().slot(slot_of("a"));
  SlotRecord& other = tables().slot(slot_of("b"));
  for (std::size_t i = 0; i < SessionId::kWords; ++i) {
    const std::uint64_t word = one.id[i];
    one.id[i] = other.id[i].load();
    other.id[i] = word;
  }
  ASSERT_TRUE(adopt().has_value());
  EXPECT_EQ(miss_of("a"), MissReason::lost_in_restart);
  EXPECT_EQ(miss_of("b"), MissReason::lost_in_restart);
  EXPECT_EQ(miss_of("c"), std::nullopt);
  EXPECT_EQ(h.core->verify(), std::nullopt);
}

// Where the epochs differ, the ledger knows which is right, and what it tells is of the right one.
TEST_F(RebuildWhose, OneSessionInTwoSlotsIsShownFromTheOneOfItsEpoch) {
  rename("b", "a").epoch = 2;
  expect_adoption("b");
}

}  // namespace
}  // namespace hotkv::test
