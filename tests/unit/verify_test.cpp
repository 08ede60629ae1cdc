#include "daemon/core/verify.hpp"

#include <gtest/gtest.h>

#include <functional>
#include <string>

#include "tests/support/core_harness.hpp"

namespace hotkv::test {
namespace {

// Shows that verify() can fail, one invariant at a time, and by its name.
class Verify : public ::testing::Test {
 protected:
  Verify() {
    for (const char* name : {"a", "b"}) {
      EXPECT_TRUE(worker.open(name, 3));
      EXPECT_TRUE(worker.append(name, 3, 40));
    }
    (void)worker.resolve("b", 3, 40).value();
    EXPECT_TRUE(worker.truncate("b", 3, 20));  // leaves a kept head
    EXPECT_TRUE(worker.open("gone", 1));
    EXPECT_TRUE(worker.release("gone", 1));
    EXPECT_EQ(h.core->verify(), std::nullopt);
  }
  void TearDown() override { EXPECT_EQ(h.core->verify(), std::nullopt); }

  core::ShardTables tables() const { return h.tables(shard); }
  SlotRecord& slot(std::uint32_t i) const { return tables().slot(SlotIndex{i}); }
  HeadWord head(std::uint32_t i) const { return load_head(slot(i).head); }

  // The word with this value is named with this text; the old value heals it.
  template <class Word, class Value>
  void expect_named(Word& word, Value value, const std::string& text) {
    SCOPED_TRACE(text);
    const auto old = word.load();
    word.store(static_cast<decltype(word.load())>(value));
    const auto broken = h.core->verify();
    word.store(old);
    ASSERT_TRUE(broken.has_value());
    EXPECT_NE(broken->find(text), std::string::npos) << *broken;
    EXPECT_NE(broken->find("shard \"tiny\" layers 0-1"), std::string::npos) << *broken;
    EXPECT_EQ(h.core->verify(), std::nullopt);
  }

  CoreHarness h;
  core::ShardId shard = h.add_shard();
  CoreClient worker{h, shard};
};

TEST_F(Verify, NamesAStateThatIsNotTheHeads) {
  expect_named(slot(0).state, SlotState::free, "slot 0: head is live, state is 0");
  expect_named(slot(0).state, SlotState::opening, "slot 0: head is live, state is 1");
  expect_named(slot(0).state, kRetiringBase + 4, "slot 0: head is live, state is 20");
  expect_named(slot(2).state, SlotState::live, "slot 2: head is free, state is 2");
  expect_named(slot(2).state, SlotState::opening, "slot 2: head is free, state is 1");
}

TEST_F(Verify, NamesASlotWhoseSessionDoesNotLeadToIt) {
  expect_named(slot(0).id_bytes, 0u, "slot 0: no session id");
  expect_named(slot(0).id_bytes, 129u, "slot 0: no session id");
  expect_named(slot(0).id[1], 1u, "slot 0: no session id");  // padding
  expect_named(slot(0).id[0], id("other").words()[0] & 0xff, "slot 0: not found by its session");
}

TEST_F(Verify, NamesAnIndexThatIsNotTheSlots) {
  for (auto& entry : tables().index()) {
    if (entry.load() == 0) continue;
    expect_named(entry, 0u, "not found by its session");
    expect_named(entry, entry.load() ^ std::uint64_t{1} << 40, "not found by its session");
  }
  for (auto& entry : tables().index()) {
    if (entry.load() != 0) continue;
    expect_named(entry, std::uint64_t{1} << 32 | 1, "index has 3 entries for 2 live slots");
    break;
  }
}

TEST_F(Verify, NamesALedgerThatIsNotTheSlots) {
  expect_named(slot(0).epoch, 2u, "slot 0: epoch is not the ledger's");
  expect_named(tables().ledger()[0].epoch, 4u, "slot 0: epoch is not the ledger's");
  expect_named(tables().ledger()[1].fate, MissReason::released,
               "slot 1: live, but the ledger has a fate");
}

TEST_F(Verify, NamesAHolderWithoutAPage) {
  expect_named(slot(0).holder, 3u, "slot 0: holder has no page");
  expect_named(slot(0).holder, ~0u, "slot 0: holder has no page");
}

TEST_F(Verify, NamesALiveSlotThatIsNotCounted) {
  expect_named(slot(2).head, HeadWord{Generation{2}, Tip::empty()}.bits(), "slot 2");
  expect_named(slot(0).head, HeadWord{Generation{1}, Tip::free()}.bits(), "slot 0");
}

TEST_F(Verify, NamesAnUnsoundChain) {
  const ChunkIndex tip = head(0).tip.chunk();
  expect_named(slot(0).head, HeadWord{Generation{1}, Tip::at(ChunkIndex{63})}.bits(),
               "slot 0: chain is unsound");
  expect_named(slot(0).head, HeadWord{Generation{1}, Tip::from_bits(~0u)}.bits(),
               "slot 0: chain is unsound");
  expect_named(tables().chunk_word(tip), ChunkWord{tip, 2}.bits(), "slot 0: chain is unsound");
  expect_named(tables().chunk_word(tip), ChunkWord{std::nullopt, 2}.bits(),
               "slot 0: chain is unsound");
  expect_named(tables().chunk_word(tip), ChunkWord{ChunkIndex{60}, 2}.bits(),
               "slot 0: chain is unsound");
}

TEST_F(Verify, NamesWhatHasAnotherSealThanItsOwn) {
  AtomicWord& own = slot(0).seals[slot(0).seals[0] == 0 ? 1 : 0];
  AtomicWord& other = slot(0).seals[slot(0).seals[0] == 0 ? 0 : 1];
  expect_named(own, own.load() ^ 2, "slot 0: its seal is another's");
  expect_named(other, own.load(), "slot 0: it has two seals");
  expect_named(slot(2).seals[1], 1u, "slot 2: head is free, and sealed");
  // A head in another context's chain.
  expect_named(slot(0).head, HeadWord{Generation{1}, head(1).tip}.bits(),
               "slot 0: chain is unsound");
  expect_named(tables().chunk_seal(head(0).tip.chunk()), 1u, "slot 0: chain is unsound");
  // A free chunk whose memory is there.
  EXPECT_TRUE(worker.open("more", 1));
  EXPECT_TRUE(worker.append("more", 1, 1));
  const ChunkIndex freed = head(2).tip.chunk();
  EXPECT_TRUE(worker.release("more", 1));
  expect_named(tables().chunk_seal(freed), 1u, "nobody's, and sealed");
}

TEST_F(Verify, NamesOwnersThatAreCountedWrong) {
  const ChunkIndex tip = head(0).tip.chunk();
  // A chain cut short leaks the rest of it.
  const auto previous = ChunkWord::from_bits(tables().chunk_word(tip).load()).previous.value();
  expect_named(slot(0).head, HeadWord{Generation{1}, Tip::at(previous)}.bits(),
               "owners, counted as");
  expect_named(slot(0).head, HeadWord{Generation{1}, Tip::empty()}.bits(), "owners, counted as");
}

TEST_F(Verify, NamesAKeptHeadThatKeepsNothing) {
  AtomicWord& kept = tables().kept_heads()[0].head;
  const auto old = HeadWord::from_bits(kept.load());
  expect_named(kept, HeadWord{old.generation, Tip::empty()}.bits(),
               "kept head of slot 1: chain is unsound");
  expect_named(kept, HeadWord{old.generation, Tip::at(ChunkIndex{62})}.bits(),
               "kept head of slot 1: chain is unsound");
  expect_named(kept, HeadWord{head(1).generation, old.tip}.bits(),
               "kept head of slot 1: its generation is not over");
  expect_named(kept, HeadWord{Generation{99}, old.tip}.bits(),
               "kept head of slot 1: its generation is not over");
  expect_named(kept, HeadWord{old.generation, head(1).tip}.bits(), "owners, counted as");
}

// The slot of a kept head is checked before it is used as an index.
TEST_F(Verify, NamesAKeptHeadOfNoSlot) {
  expect_named(tables().kept_heads()[0].slot, 0x7fff'ffffu, "kept head of");
}

// The slot of an index entry is checked before it is used as an index.
TEST_F(Verify, NamesAnIndexEntryOfNoSlot) {
  for (auto& entry : tables().index()) {
    if (entry.load() == 0) continue;
    expect_named(entry, entry.load() | 0x7fff'ffff, "there is no such slot");
  }
}

TEST_F(Verify, IsCleanBetweenTheOperationsOfAMessage) {
  ASSERT_TRUE(h.core->release(worker.client, id("b"), Epoch{3}, Generation{0}, SlotIndex{0}));
  EXPECT_EQ(h.core->verify(), std::nullopt);
  ASSERT_TRUE(
      h.core->open(worker.client, id("c"), Epoch{1}, h.core->recipe_of(shard).fingerprint()));
  EXPECT_EQ(h.core->verify(), std::nullopt);
  h.core->end_message(shard);
}

// What clients write is no invariant: it is bounded where it is read.
TEST_F(Verify, TakesNothingAmissThatClientsCanWrite) {
  tables().length_word(SlotIndex{0}) = ~std::uint64_t{0};
  tables().untrusted_touch(SlotIndex{0}) = ~0u;
  tables().untrusted_page(PageIndex{0}).high_water = ~0u;
  tables().untrusted_page(PageIndex{0}).pins[5] = ~std::uint64_t{0};
  EXPECT_EQ(h.core->verify(), std::nullopt);
}

}  // namespace
}  // namespace hotkv::test
