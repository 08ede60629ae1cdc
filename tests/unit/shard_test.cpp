#include "daemon/core/shard.hpp"

#include <gtest/gtest.h>

#include <numeric>
#include <string>
#include <vector>

#include "tests/support/core_harness.hpp"

namespace hotkv::test {
namespace {

class Shard : public ::testing::Test {
 protected:
  void TearDown() override { EXPECT_EQ(h.core->verify(), std::nullopt); }

  core::Counters counters() const { return h.core->status().shards.at(0).counters; }
  core::Account account() const { return h.core->status().account; }
  core::ShardTables tables() const { return h.tables(shard); }
  SlotRecord& slot(std::uint32_t index) const { return tables().slot(SlotIndex{index}); }

  // Sets the generation of a context that nobody is writing to.
  void age(SlotIndex of, std::uint32_t generation) {
    const HeadWord head = load_head(tables().slot(of).head);
    const auto length = LengthWord::from_bits(tables().length_word(of).load());
    tables().slot(of).head = HeadWord{Generation{generation}, head.tip}.bits();
    tables().length_word(of) = LengthWord{Generation{generation}, length.tokens}.bits();
  }
  // Tokens [0, first) were written as version 1, the rest as version 2.
  static std::vector<std::uint32_t> versions(std::uint32_t first, std::uint32_t length) {
    std::vector<std::uint32_t> all(length, 1);
    std::fill(all.begin() + first, all.end(), 2);
    return all;
  }

  CoreHarness h;
  core::ShardId shard = h.add_shard();
  CoreClient worker{h, shard};
  CoreClient reader{h, shard, Access::read};
};

TEST_F(Shard, TruncateBelowAPinKeepsTheReadersBytes) {
  ASSERT_TRUE(worker.open("a", 1));
  ASSERT_TRUE(worker.append("a", 1, 60, 1));
  const auto view = reader.resolve("a", 1, 60).value();
  ASSERT_TRUE(worker.truncate("a", 1, 5));
  ASSERT_TRUE(worker.append("a", 1, 50, 2));
  EXPECT_EQ(reader.wrong_bytes("a", 1, view, versions(60, 60)), 0u);
  EXPECT_GT(account().kept, 0u);
  const auto now = worker.resolve("a", 1, 55).value();
  EXPECT_EQ(worker.wrong_bytes("a", 1, now, versions(5, 55)), 0u);
  worker.unpin(now);
  reader.unpin(view);
  h.core->end_message(shard);
  EXPECT_EQ(account().kept, 0u);
}

TEST_F(Shard, AppendAfterATruncateBelowAPinCopiesTheSharedTailOnce) {
  ASSERT_TRUE(worker.open("a", 1));
  ASSERT_TRUE(worker.append("a", 1, 40, 1));
  const auto view = reader.resolve("a", 1, 40).value();
  ASSERT_TRUE(worker.truncate("a", 1, 21));
  EXPECT_EQ(counters().tail_copies, 0u);  // not before it is written to
  ASSERT_TRUE(worker.append("a", 1, 1, 2));
  EXPECT_EQ(counters().tail_copies, 1u);
  for (int i = 0; i < 12; ++i) ASSERT_TRUE(worker.append("a", 1, 1, 2));
  EXPECT_EQ(counters().tail_copies, 1u);
  EXPECT_EQ(reader.wrong_bytes("a", 1, view, versions(40, 40)), 0u);
  const auto now = worker.resolve("a", 1, 34).value();
  EXPECT_EQ(worker.wrong_bytes("a", 1, now, versions(21, 34)), 0u);
}

TEST_F(Shard, AppendAfterATruncateCopiesNothingWhenNobodyIsPinned) {
  ASSERT_TRUE(worker.open("a", 1));
  ASSERT_TRUE(worker.append("a", 1, 40));
  ASSERT_TRUE(worker.truncate("a", 1, 21));
  ASSERT_TRUE(worker.append("a", 1, 30));
  EXPECT_EQ(counters().tail_copies, 0u);
}

TEST_F(Shard, AppendAfterATruncateToAChunksEdgeCopiesNothing) {
  ASSERT_TRUE(worker.open("a", 1));
  ASSERT_TRUE(worker.append("a", 1, 40, 1));
  const auto view = reader.resolve("a", 1, 40).value();
  ASSERT_TRUE(worker.truncate("a", 1, 32));
  ASSERT_TRUE(worker.append("a", 1, 30, 2));
  EXPECT_EQ(counters().tail_copies, 0u);
  EXPECT_EQ(reader.wrong_bytes("a", 1, view, versions(40, 40)), 0u);
}

TEST_F(Shard, CloseCutsWritersOffAndKeepsWhatIsPublished) {
  const auto opened = worker.open("a", 1).value();
  ASSERT_TRUE(worker.append("a", 1, 20, 1));
  const auto granted = worker.grant("a", 1, 60).value();
  const auto writer = worker.pin_for_writing(granted).value();
  worker.write("a", 1, writer, 20, 30, 1);
  ASSERT_TRUE(worker.close("a", 1));
  EXPECT_FALSE(worker.publish(writer, 20, 30));

  CoreClient next(h, shard);
  const auto reopened = next.open("a", 1).value();
  EXPECT_EQ(reopened.length, TokenCount{20});
  EXPECT_GT(reopened.generation, opened.generation);
  ASSERT_TRUE(next.append("a", 1, 20, 2));
  // The old writer still stores where it was allowed to; nobody sees it.
  worker.write("a", 1, writer, 20, 60, 9);
  const auto now = next.resolve("a", 1, 40).value();
  EXPECT_EQ(next.wrong_bytes("a", 1, now, versions(20, 40)), 0u);
}

TEST_F(Shard, CloseFreesGrantsThatWereNotUsed) {
  ASSERT_TRUE(worker.open("a", 1));
  ASSERT_TRUE(worker.append("a", 1, 16));
  ASSERT_TRUE(worker.grant("a", 1, 160));
  const auto before = account();
  ASSERT_TRUE(worker.close("a", 1));
  EXPECT_EQ(before.used - account().used, 9u * 4096);
}

TEST_F(Shard, TakeOverFromAHolderThatLivesButHungUpCutsItOff) {
  ASSERT_TRUE(worker.open("a", 1));
  ASSERT_TRUE(worker.append("a", 1, 20, 1));
  const auto granted = worker.grant("a", 1, 60).value();
  const auto writer = worker.pin_for_writing(granted).value();
  worker.hang_up();

  CoreClient next(h, shard);
  const auto taken = next.open("a", 1).value();
  EXPECT_GT(taken.generation, granted.generation);
  EXPECT_EQ(taken.length, TokenCount{20});
  EXPECT_EQ(counters().takeovers, 1u);
  worker.write("a", 1, writer, 20, 60, 9);
  EXPECT_FALSE(worker.publish(writer, 20, 60));
  ASSERT_TRUE(next.append("a", 1, 10, 2));
  EXPECT_EQ(counters().tail_copies, 1u);  // the writer's pin keeps its own tail
  worker.write("a", 1, writer, 20, 60, 9);
  const auto now = next.resolve("a", 1, 30).value();
  EXPECT_EQ(next.wrong_bytes("a", 1, now, versions(20, 30)), 0u);
}

TEST_F(Shard, ADeadHoldersLeaseIsFreeAtOnceInTheSameGeneration) {
  const auto opened = worker.open("a", 1).value();
  ASSERT_TRUE(worker.append("a", 1, 20));
  h.liveness.gone.insert(worker.client);  // killed; nobody has noticed the hang-up yet
  h.core->disconnected(worker.client);
  CoreClient next(h, shard);
  const auto taken = next.open("a", 1).value();
  EXPECT_EQ(taken.generation, opened.generation);
  EXPECT_EQ(taken.length, TokenCount{20});
  EXPECT_EQ(counters().takeovers, 0u);
}

TEST_F(Shard, AHolderThatDiesAfterItsHangUpLosesTheLeaseWhenSomebodyAsks) {
  ASSERT_TRUE(worker.open("a", 1));
  worker.hang_up();
  EXPECT_EQ(h.core->contexts().at(0).holder, worker.client.page);
  h.liveness.gone.insert(worker.client);
  CoreClient next(h, shard);
  ASSERT_TRUE(next.open("a", 1));
  EXPECT_EQ(counters().takeovers, 0u);
  EXPECT_EQ(h.core->contexts().at(0).holder, next.client.page);
}

TEST_F(Shard, SessionBusyNamesTheHoldersPageAndPid) {
  ASSERT_TRUE(worker.open("a", 1));
  CoreClient next(h, shard);
  const auto refused = next.open("a", 1);
  ASSERT_FALSE(refused.has_value());
  ASSERT_TRUE(refused.error().is(ErrorCode::session_busy));
  EXPECT_NE(refused.error().message().find("page 0, pid 100"), std::string::npos)
      << refused.error().message();
  EXPECT_NE(refused.error().message().find("\"a\""), std::string::npos);
}

TEST_F(Shard, OpenOfMineIsMineInTheSameGeneration) {
  const auto first = worker.open("a", 1).value();
  ASSERT_TRUE(worker.append("a", 1, 20));
  const auto again = worker.open("a", 1).value();
  EXPECT_EQ(again.generation, first.generation);
  EXPECT_EQ(again.length, TokenCount{20});
}

TEST_F(Shard, LeaseLostSaysWhoOrWhichGeneration) {
  const auto opened = worker.open("a", 1).value();
  ASSERT_TRUE(worker.append("a", 1, 20));
  CoreClient other(h, shard);
  const auto not_holder = other.truncate("a", 1, 5);
  ASSERT_FALSE(not_holder.has_value());
  ASSERT_TRUE(not_holder.error().is(ErrorCode::lease_lost));
  EXPECT_NE(not_holder.error().message().find("another worker holds it"), std::string::npos);
  ASSERT_TRUE(worker.truncate("a", 1, 5));
  const auto old = h.core->close(worker.client, id("a"), Epoch{1}, opened.generation);
  ASSERT_FALSE(old.has_value());
  ASSERT_TRUE(old.error().is(ErrorCode::lease_lost));
  EXPECT_NE(old.error().message().find("generation 1 is over, it is 2"), std::string::npos)
      << old.error().message();
}

// FR-122: a release means one generation.
TEST_F(Shard, ReleaseWithAnOldGenerationDoesNothing) {
  const auto opened = worker.open("a", 1).value();
  ASSERT_TRUE(worker.append("a", 1, 20));
  ASSERT_TRUE(worker.truncate("a", 1, 7));
  const auto refused =
      h.core->release(worker.client, id("a"), Epoch{1}, opened.generation, opened.slot);
  ASSERT_FALSE(refused.has_value());
  EXPECT_TRUE(refused.error().is(ErrorCode::lease_lost));
  EXPECT_TRUE(worker.resolve("a", 1, 7).has_value());
  EXPECT_EQ(counters().releases, 0u);
  // Any client of the shard may, with the right one.
  EXPECT_TRUE(h.core->release(reader.client, id("a"), Epoch{1},
                              Generation{opened.generation.value() + 1}, opened.slot));
}

// FR-122: a context is its name, slot and generation: a release of the one that is over never ends
// the newer one of its name, wherever that one lies.
TEST_F(Shard, AReleaseOfAnEndedContextSparesItsSuccessorInAnotherSlot) {
  const auto first = worker.open("s", 1).value();
  ASSERT_TRUE(worker.release("s", 1));
  ASSERT_TRUE(worker.open("in its place", 1));
  const auto second = worker.open("s", 1).value();
  ASSERT_NE(second.slot, first.slot);
  ASSERT_EQ(second.generation, first.generation);
  const auto refused =
      h.core->release(reader.client, id("s"), Epoch{1}, first.generation, first.slot);
  ASSERT_FALSE(refused.has_value());
  EXPECT_TRUE(refused.error().is(ErrorCode::lease_lost));
  EXPECT_TRUE(worker.resolve("s", 1, 0).has_value());
}

TEST_F(Shard, AfterAnEvictionTheLedgerStillRefusesStaleEpochsAndSaysWhy) {
  ASSERT_TRUE(worker.open("a", 7));
  ASSERT_TRUE(worker.append("a", 7, 33));
  h.now_ms += h.limits.ttl_ms;
  h.core->tick();
  h.now_ms += 250;
  EXPECT_TRUE(worker.open("a", 6).error().is(ErrorCode::stale_epoch));
  const auto miss = worker.resolve("a", 7, 33).error();
  ASSERT_TRUE(miss.is(MissReason::evicted_ttl));
  EXPECT_EQ(miss.miss().known_length, TokenCount{33});
  EXPECT_EQ(miss.miss().known_epoch, Epoch{7});
  EXPECT_EQ(miss.miss().age_ms, 250u);
  EXPECT_TRUE(worker.resolve("a", 8, 33).error().is(MissReason::unknown_session));
  EXPECT_TRUE(worker.resolve("a", 6, 33).error().is(MissReason::superseded_epoch));
  // The same epoch again is a new, empty context.
  EXPECT_EQ(worker.open("a", 7)->length, TokenCount{0});
}

TEST_F(Shard, AtTheLastGenerationOnlyReleaseAndSupersedeEndIt) {
  const auto opened = worker.open("a", 1).value();
  ASSERT_TRUE(worker.append("a", 1, 40));
  age(opened.slot, kGenerationMax - 1);
  ASSERT_TRUE(worker.truncate("a", 1, 30));  // the last one it may begin
  const auto view = reader.resolve("a", 1, 30).value();
  EXPECT_TRUE(worker.truncate("a", 1, 20).error().is(ErrorCode::generations_exhausted));
  EXPECT_TRUE(worker.close("a", 1).error().is(ErrorCode::generations_exhausted));
  EXPECT_TRUE(worker.append("a", 1, 10).has_value());  // in place: no new generation
  reader.unpin(view);
  worker.hang_up();
  CoreClient next(h, shard);
  EXPECT_TRUE(next.open("a", 1).error().is(ErrorCode::generations_exhausted));
  EXPECT_EQ(next.resolve("a", 1, 40)->length, TokenCount{40});
  ASSERT_TRUE(next.open("a", 2));
  EXPECT_EQ(slot(0).state.load(), static_cast<std::uint32_t>(SlotState::worn_out));
}

TEST_F(Shard, ATailCopyThatWouldNeedAGenerationTooManyIsRefused) {
  const auto opened = worker.open("a", 1).value();
  ASSERT_TRUE(worker.append("a", 1, 40));
  age(opened.slot, kGenerationMax - 1);
  const auto view = reader.resolve("a", 1, 40).value();
  ASSERT_TRUE(worker.truncate("a", 1, 35));
  EXPECT_TRUE(worker.append("a", 1, 1).error().is(ErrorCode::generations_exhausted));
  EXPECT_EQ(reader.wrong_bytes("a", 1, view), 0u);
  EXPECT_EQ(worker.resolve("a", 1, 35)->length, TokenCount{35});
}

TEST_F(Shard, AWornOutSlotIsNeverUsedAgain) {
  const auto opened = worker.open("a", 1).value();
  age(opened.slot, kGenerationMax);
  ASSERT_TRUE(worker.release("a", 1));
  const auto head = slot(0).head.load();
  for (int round = 0; round < 2; ++round) {
    for (std::uint32_t i = 0; i < 3 * h.limits.session_cap; ++i) {
      ++h.now_ms;
      const auto position = worker.open("s" + std::to_string(i), 1 + static_cast<unsigned>(round));
      ASSERT_TRUE(position.has_value()) << position.error().message();
      ASSERT_NE(position->slot, opened.slot);
    }
    EXPECT_EQ(slot(0).head.load(), head);
    EXPECT_EQ(slot(0).state.load(), static_cast<std::uint32_t>(SlotState::worn_out));
    worker.hang_up();
    h.restart();
    shard = h.files.begin()->first;
    worker.client = h.attach(shard);
  }
}

TEST_F(Shard, AWildLengthWordIsBoundedByTheChain) {
  const auto opened = worker.open("a", 1).value();
  ASSERT_TRUE(worker.append("a", 1, 20));
  ASSERT_TRUE(worker.open("b", 1));
  ASSERT_TRUE(worker.append("b", 1, 20));
  AtomicWord& word = tables().length_word(opened.slot);
  const auto length = [&] { return h.core->contexts().at(0).length; };
  word = LengthWord{opened.generation, TokenCount{~std::uint32_t{0}}}.bits();
  EXPECT_EQ(length(), TokenCount{32});
  word = ~std::uint64_t{0};
  EXPECT_EQ(length(), TokenCount{0});
  word = LengthWord{Generation{opened.generation.value() + 1}, TokenCount{5}}.bits();
  EXPECT_EQ(length(), TokenCount{0});
  EXPECT_TRUE(worker.close("a", 1));  // the daemon's exchange overrides whatever stands there
  const auto again = worker.open("a", 1).value();
  EXPECT_EQ(again.length, TokenCount{0});
  EXPECT_EQ(LengthWord::from_bits(word.load()).generation, again.generation);
  const auto other = worker.resolve("b", 1, 20).value();
  EXPECT_EQ(worker.wrong_bytes("b", 1, other), 0u);
}

TEST_F(Shard, TheEndOfAContextKeepsItsChunksForWhoPinnedIt) {
  ASSERT_TRUE(worker.open("a", 1));
  ASSERT_TRUE(worker.append("a", 1, 40));
  const auto view = reader.resolve("a", 1, 40).value();
  ASSERT_TRUE(worker.release("a", 1));
  ASSERT_TRUE(worker.open("b", 1));
  ASSERT_TRUE(worker.append("b", 1, 60 * 16));
  EXPECT_EQ(reader.wrong_bytes("a", 1, view), 0u);
  EXPECT_EQ(account().kept, 3u * 4096);
  reader.die();  // without ever unpinning
  EXPECT_EQ(account().kept, 0u);
}

// Whatever generation a slot had never comes again in it, so an old pin never means a new context.
TEST_F(Shard, GenerationsOfASlotOnlyRise) {
  std::uint32_t last = 0;
  for (std::uint64_t epoch = 1; epoch < 40; ++epoch) {
    const auto opened = worker.open("a", epoch).value();
    const auto generation = load_head(tables().slot(opened.slot).head).generation.value();
    if (opened.slot == SlotIndex{0}) {
      EXPECT_GT(generation, last);
      last = generation;
    }
    ASSERT_TRUE(worker.append("a", epoch, 20));
    ASSERT_TRUE(worker.truncate("a", epoch, 3));
    if (epoch % 3 == 0) {
      ASSERT_TRUE(worker.release("a", epoch));
    }
  }
}

}  // namespace
}  // namespace hotkv::test
