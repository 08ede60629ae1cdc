#include "daemon/core/reclaim.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <string>

#include "tests/support/core_harness.hpp"
#include "tests/support/order_runner.hpp"

namespace hotkv::test {
namespace {

constexpr std::uint64_t kChunk = 4096;  // one chunk of 16 tokens, one extent

// Two shards of owner 1 and one each of owners 2 and 3, and a budget of eight chunks.
class Reclaim : public ::testing::Test {
 protected:
  explicit Reclaim(std::uint64_t chunks_of_one_owner = 0) {
    limits.max_bytes = 8 * kChunk;
    limits.max_bytes_per_owner = chunks_of_one_owner * kChunk;
    h = std::make_unique<CoreHarness>(limits);
    runner = std::make_unique<OrderRunner>(*h);
    a = client(1, "a");
    b = client(1, "b");
    other = client(2, "c");
    third = client(3, "d");
  }
  void TearDown() override {
    EXPECT_EQ(h->core->verify(), std::nullopt);
    EXPECT_LE(runner->held_bytes_max(), limits.max_bytes);
    EXPECT_EQ(runner->contradictions(), 0u);
  }
  std::unique_ptr<CoreClient> client(std::uint32_t owner, const std::string& model) {
    return std::make_unique<CoreClient>(*h, h->add_shard(small_recipe({0, 1}, model), owner));
  }

  // A context of this many chunks, used later than all before it.
  static constexpr std::uint32_t kTokens = 16;
  testing::AssertionResult add(CoreClient& of, const std::string& session, std::uint32_t chunks) {
    h->now_ms += 1000;
    if (auto opened = of.open(session, 1); !opened) {
      return testing::AssertionFailure() << opened.error().message();
    }
    return grow(of, session, chunks);
  }
  testing::AssertionResult grow(CoreClient& of, const std::string& session, std::uint32_t chunks) {
    const auto now = of.append(session, 1, chunks * kTokens);
    if (!now) return testing::AssertionFailure() << now.error().message();
    return testing::AssertionSuccess();
  }
  // The append alone; what it orders is left under way.
  std::variant<core::Position, Refusal, core::Waiting> ask(CoreClient& of,
                                                           const std::string& session,
                                                           std::uint32_t chunks) {
    const auto position = of.open(session, 1).value();
    auto answer = h->core->append(of.client, id(session), Epoch{1}, position.generation,
                                  TokenCount{position.length.value() + chunks * kTokens});
    h->core->end_message(of.client.shard);
    return answer;
  }
  bool lives(CoreClient& of, const std::string& session) const {
    return std::ranges::any_of(h->core->contexts(), [&](const auto& context) {
      return context.shard == of.client.shard && context.session == id(session);
    });
  }
  core::Counters counters(CoreClient& of) const {
    for (const auto& shard : h->core->status().shards) {
      if (shard.id == of.client.shard) return shard.counters;
    }
    return {};
  }
  std::uint64_t evicted() const {
    std::uint64_t sum = 0;
    for (const auto& shard : h->core->status().shards) {
      sum += shard.counters.ended[static_cast<std::size_t>(MissReason::evicted_lru)];
    }
    return sum;
  }
  CoreView pin(CoreClient& of, const std::string& session, std::uint32_t chunks) {
    return of.resolve(session, 1, chunks * kTokens).value();
  }

  core::Limits limits = CoreHarness::small_limits();
  std::unique_ptr<CoreHarness> h;
  std::unique_ptr<OrderRunner> runner;
  std::unique_ptr<CoreClient> a, b, other, third;
};

TEST_F(Reclaim, FreeChunksHereComeFirst) {
  ASSERT_TRUE(add(*a, "a1", 3));
  ASSERT_TRUE(add(*b, "b1", 2));
  ASSERT_TRUE(a->release("a1", 1));
  EXPECT_TRUE(std::holds_alternative<core::Position>(ask(*a, "a2", 3)));
  EXPECT_TRUE(runner->waiting().empty());
}

TEST_F(Reclaim, ThenMemoryBelowTheBudgetBeforeAnybodysIdleExtents) {
  ASSERT_TRUE(add(*b, "b1", 4));
  ASSERT_TRUE(b->release("b1", 1));
  ASSERT_TRUE(add(*other, "c1", 1));
  ASSERT_TRUE(std::holds_alternative<core::Waiting>(ask(*a, "a1", 3)));
  ASSERT_EQ(runner->waiting().size(), 1u);
  EXPECT_TRUE(runner->waiting().front().punch.empty());
  EXPECT_EQ(runner->waiting().front().provision.size(), 3u);
  runner->run_all();
  EXPECT_EQ(evicted(), 0u);
}

TEST_F(Reclaim, ThenIdleExtentsElsewherePunchedInTheSameOrderBeforeProvisioning) {
  ASSERT_TRUE(add(*other, "c1", 8));
  ASSERT_TRUE(other->release("c1", 1));
  ASSERT_TRUE(std::holds_alternative<core::Waiting>(ask(*a, "a1", 3)));
  ASSERT_EQ(runner->waiting().size(), 1u);
  const core::MemoryOrder& order = runner->waiting().front();
  ASSERT_EQ(order.punch.size(), 3u);
  EXPECT_EQ(order.provision.size(), 3u);
  for (const auto& range : order.punch) EXPECT_EQ(range.shard, other->client.shard);
  for (const auto& range : order.provision) EXPECT_EQ(range.shard, a->client.shard);
  // The highest ones go, so that what stays is dense at the low end.
  const auto first_chunk = FileLayout::of(h->files.at(other->client.shard)->capacities,
                                          h->files.at(other->client.shard)->geometry)
                               .chunks.value();
  EXPECT_EQ(order.punch.front().arena_offset.value(), first_chunk + 7 * kChunk);
  // On the way they count as provisioned where they go, and nowhere else.
  EXPECT_EQ(h->core->status().account.provisioned, 8 * kChunk);
  EXPECT_EQ(h->core->status().account.in_transit, 3 * kChunk);
  runner->run_all();
  EXPECT_EQ(runner->held_bytes(), 8 * kChunk);
  EXPECT_EQ(evicted(), 0u);
}

TEST_F(Reclaim, ThenTheLeastRecentlyUsedHereBeforeOlderOnesElsewhere) {
  ASSERT_TRUE(add(*b, "b oldest", 3));
  ASSERT_TRUE(add(*a, "a1", 3));
  ASSERT_TRUE(add(*a, "a2", 2));
  EXPECT_TRUE(std::holds_alternative<core::Position>(ask(*a, "a3", 2)));
  EXPECT_FALSE(lives(*a, "a1"));
  EXPECT_TRUE(lives(*a, "a2"));
  EXPECT_TRUE(lives(*b, "b oldest"));
  EXPECT_EQ(evicted(), 1u);
}

TEST_F(Reclaim, ThenOfTheOwnerMostAboveItsShareWhoeverIsOlder) {
  ASSERT_TRUE(add(*third, "d1", 1));  // oldest of all, but its owner has less than a share
  ASSERT_TRUE(add(*other, "c1", 2));
  ASSERT_TRUE(add(*other, "c2", 4));
  ASSERT_TRUE(add(*a, "a1", 1));
  ASSERT_TRUE(std::holds_alternative<core::Waiting>(ask(*a, "a1", 2)));
  runner->run_all();
  EXPECT_FALSE(lives(*other, "c1"));
  EXPECT_TRUE(lives(*other, "c2"));
  EXPECT_TRUE(lives(*third, "d1"));
  EXPECT_EQ(evicted(), 1u);  // as many as the need takes
}

TEST_F(Reclaim, TheOldestFirstOverAllShardsOfOneOwner) {
  ASSERT_TRUE(add(*a, "a1", 2));
  ASSERT_TRUE(add(*b, "b1", 2));
  ASSERT_TRUE(add(*a, "a2", 2));
  ASSERT_TRUE(add(*b, "b2", 2));
  ASSERT_TRUE(std::holds_alternative<core::Waiting>(ask(*other, "c1", 4)));
  runner->run_all();
  EXPECT_FALSE(lives(*a, "a1"));
  EXPECT_FALSE(lives(*b, "b1"));
  EXPECT_TRUE(lives(*a, "a2"));
  EXPECT_TRUE(lives(*b, "b2"));
}

TEST_F(Reclaim, ATouchWithoutTheDaemonCountsAsUse) {
  ASSERT_TRUE(add(*a, "a1", 4));
  ASSERT_TRUE(add(*a, "a2", 4));
  h->now_ms += 1000;
  a->unpin(pin(*a, "a1", 4));
  ASSERT_TRUE(add(*a, "a3", 2));
  EXPECT_TRUE(lives(*a, "a1"));
  EXPECT_FALSE(lives(*a, "a2"));
}

TEST_F(Reclaim, WhatIsPinnedIsNeverAVictim) {
  ASSERT_TRUE(add(*a, "a1", 3));
  ASSERT_TRUE(add(*other, "c1", 3));
  ASSERT_TRUE(add(*a, "a2", 2));
  const auto mine = pin(*a, "a1", 3);
  const auto theirs = pin(*other, "c1", 3);
  EXPECT_TRUE(std::holds_alternative<core::Position>(ask(*a, "a3", 2)));
  EXPECT_FALSE(lives(*a, "a2"));
  EXPECT_EQ(a->wrong_bytes("a1", 1, mine), 0u);
  EXPECT_EQ(other->wrong_bytes("c1", 1, theirs), 0u);
}

TEST_F(Reclaim, NobodyIsEvictedWhenTheNeedCannotBeMet) {
  ASSERT_TRUE(add(*a, "a1", 3));
  ASSERT_TRUE(add(*other, "c1", 3));
  ASSERT_TRUE(add(*a, "a2", 2));
  (void)pin(*other, "c1", 3);
  ASSERT_TRUE(add(*a, "a3", 0));
  const auto before = h->core->status().account;
  const auto answer = ask(*a, "a3", 6);
  ASSERT_TRUE(std::holds_alternative<Refusal>(answer));
  EXPECT_TRUE(std::get<Refusal>(answer).is(ErrorCode::budget_exceeded));
  EXPECT_TRUE(lives(*a, "a1") && lives(*a, "a2") && lives(*other, "c1"));
  EXPECT_EQ(evicted(), 0u);
  EXPECT_EQ(counters(*a).evictions_in_vain, 1u);
  EXPECT_EQ(h->core->status().account.used, before.used);
  EXPECT_EQ(h->core->status().account.free, before.free);
  EXPECT_TRUE(runner->waiting().empty());
}

TEST_F(Reclaim, ARefusalSaysWhatWasNeededAndWhatThereIs) {
  ASSERT_TRUE(add(*a, "a1", 6));
  (void)pin(*a, "a1", 6);
  const auto answer = ask(*a, "a2", 3);
  ASSERT_TRUE(std::holds_alternative<Refusal>(answer));
  const std::string text = std::get<Refusal>(answer).message();
  EXPECT_NE(text.find("needed 12288 bytes, free 8192"), std::string::npos) << text;
  EXPECT_NE(text.find("24576, budget 32768"), std::string::npos) << text;
}

// FR-020: the context that grows is the least recently used one and does not go for itself.
TEST_F(Reclaim, TheAppendingContextIsNeverItsOwnVictim) {
  ASSERT_TRUE(add(*a, "grows", 2));
  ASSERT_TRUE(add(*a, "a1", 2));
  ASSERT_TRUE(add(*a, "a2", 2));
  ASSERT_TRUE(add(*a, "a3", 2));
  for (const std::uint32_t chunks : {2u, 2u, 2u}) {
    // A clock behind all others' uses, so that it stays the least recently used one all the same.
    h->now_ms -= 50'000;
    ASSERT_TRUE(grow(*a, "grows", chunks));
    EXPECT_EQ(h->core->contexts().front().session, id("grows"));
    h->now_ms += 50'000;
  }
  EXPECT_FALSE(lives(*a, "a1") || lives(*a, "a2") || lives(*a, "a3"));
  const auto view = pin(*a, "grows", 8);
  EXPECT_EQ(a->wrong_bytes("grows", 1, view), 0u);
  a->unpin(view);
  EXPECT_TRUE(a->append("grows", 1, 1).error().is(ErrorCode::budget_exceeded));
  EXPECT_TRUE(lives(*a, "grows"));
}

// FR-026: chunks of the request's own context are not counted as free for it.
TEST_F(Reclaim, ARequestDoesNotCountItsOwnContextAsFree) {
  for (const bool is_pinned : {false, true}) {
    SCOPED_TRACE(is_pinned);
    ASSERT_TRUE(add(*a, "s", 5));
    if (is_pinned) (void)pin(*a, "s", 5);
    const auto before = h->core->status().account;
    const auto refused = ask(*a, "s", 4);
    ASSERT_TRUE(std::holds_alternative<Refusal>(refused));
    EXPECT_TRUE(std::get<Refusal>(refused).is(ErrorCode::budget_exceeded));
    EXPECT_EQ(h->core->status().account.used, before.used);
    EXPECT_TRUE(lives(*a, "s"));
    ASSERT_FALSE(std::holds_alternative<Refusal>(ask(*a, "s", 3)));
    runner->run_all();
    ASSERT_TRUE(a->release("s", 1));
    if (is_pinned) break;
  }
}

// FR-025: what goes is a context, never the front of one.
TEST_F(Reclaim, WhatRemainsOfAContextIsAllOfItOrNothing) {
  for (int round = 0; round < 30; ++round) {
    for (const char* name : {"s1", "s2", "s3"}) {
      h->now_ms += 100;
      if (!lives(*a, name)) {
        ASSERT_TRUE(a->open(name, 1));
        ASSERT_TRUE(grow(*a, name, 2));
      } else if (round % 4 == 1) {
        a->unpin(pin(*a, name, 2));
      }
    }
    ASSERT_TRUE(add(*a, "x" + std::to_string(round), 1 + static_cast<unsigned>(round) % 5));
    for (const auto& context : h->core->contexts()) {
      if (context.session.bytes().starts_with('x')) continue;
      EXPECT_EQ(context.length, TokenCount{2 * kTokens});
      EXPECT_EQ(context.chunks, 2u);
      const auto view = a->resolve(context.session.bytes(), 1, 2 * kTokens).value();
      EXPECT_EQ(a->wrong_bytes(context.session.bytes(), 1, view), 0u);
      a->unpin(view);
    }
    ASSERT_TRUE(a->release("x" + std::to_string(round), 1));
  }
}

// FR-028: as many go as the bytes demand.
TEST_F(Reclaim, AsManyGoAsTheNeedTakesAndNoMore) {
  for (int i = 0; i < 8; ++i) ASSERT_TRUE(add(*a, "a" + std::to_string(i), 1));
  ASSERT_TRUE(std::holds_alternative<core::Waiting>(ask(*other, "c1", 3)));
  EXPECT_EQ(evicted(), 3u);
  runner->run_all();
  EXPECT_EQ(evicted(), 3u);
}

// A reader that hung up and died after the choice was made is asked after before anybody goes.
TEST_F(Reclaim, PinsOfTheDeadHoldNothingWhenMemoryIsNeeded) {
  CoreClient dying(*h, a->client.shard);
  ASSERT_TRUE(add(*a, "a1", 8));
  (void)dying.resolve("a1", 1, 8 * kTokens).value();
  dying.hang_up();
  h->liveness.gone.insert(dying.client);
  EXPECT_TRUE(add(*a, "a2", 8));
  EXPECT_FALSE(lives(*a, "a1"));
}

class ReclaimWithABoundPerOwner : public Reclaim {
 protected:
  ReclaimWithABoundPerOwner() : Reclaim(4) {}
};

TEST_F(ReclaimWithABoundPerOwner, AnOwnerAtItsBoundEvictsItsOwn) {
  ASSERT_TRUE(add(*other, "c oldest", 3));
  ASSERT_TRUE(add(*a, "a1", 3));
  ASSERT_TRUE(add(*b, "b1", 1));
  ASSERT_TRUE(std::holds_alternative<core::Waiting>(ask(*b, "b1", 2)));
  runner->run_all();
  EXPECT_FALSE(lives(*a, "a1"));
  EXPECT_TRUE(lives(*other, "c oldest"));
  EXPECT_LE(runner->held_bytes() - 3 * kChunk, 4 * kChunk);
}

TEST_F(ReclaimWithABoundPerOwner, AnOwnersIdleExtentsAreMovedBetweenItsShards) {
  ASSERT_TRUE(add(*a, "a1", 4));
  ASSERT_TRUE(a->release("a1", 1));
  ASSERT_TRUE(std::holds_alternative<core::Waiting>(ask(*b, "b1", 2)));
  ASSERT_EQ(runner->waiting().front().punch.size(), 2u);
  EXPECT_EQ(runner->waiting().front().punch.front().shard, a->client.shard);
  runner->run_all();
}

TEST_F(ReclaimWithABoundPerOwner, MoreThanTheBoundIsRefusedAndNobodyGoes) {
  ASSERT_TRUE(add(*other, "c1", 4));
  ASSERT_TRUE(add(*a, "a1", 2));
  ASSERT_TRUE(add(*a, "a2", 0));
  EXPECT_TRUE(std::holds_alternative<Refusal>(ask(*a, "a2", 5)));
  (void)pin(*a, "a1", 2);
  EXPECT_TRUE(std::holds_alternative<Refusal>(ask(*a, "a2", 3)));
  EXPECT_EQ(evicted(), 0u);
}

TEST_F(ReclaimWithABoundPerOwner, HoldsInTheSumOfAnOwnersShardsAtEveryMoment) {
  for (int i = 0; i < 40; ++i) {
    CoreClient& of = i % 3 == 0 ? *a : i % 3 == 1 ? *b : *other;
    ASSERT_TRUE(add(of, "s" + std::to_string(i), 1 + static_cast<unsigned>(i) % 4));
    std::uint64_t owner_one = 0;
    for (const auto& shard : h->core->status().shards) {
      if (shard.key.owner_uid == 1) owner_one += shard.account.provisioned;
    }
    EXPECT_LE(owner_one, 4 * kChunk);
    EXPECT_EQ(h->core->verify(), std::nullopt);
  }
}

// Extents of several chunks: a context elsewhere gives memory only where a whole extent empties.
class ReclaimOfWideExtents : public ::testing::Test {
 protected:
  static core::Limits limits() {
    auto limits = CoreHarness::small_limits();
    limits.huge_pages = true;
    limits.chunk_tokens = 4096;  // of 128 bytes: four chunks an extent
    limits.max_bytes = 2 * kHugePageBytes;
    return limits;
  }
  void TearDown() override { EXPECT_EQ(h.core->verify(), std::nullopt); }
  // Grants `chunks` chunks; nothing is written.
  bool add(CoreClient& of, const std::string& session, std::uint32_t chunks) {
    h.now_ms += 1000;
    return of.open(session, 1).has_value() && of.grant(session, 1, chunks * 4096).has_value();
  }
  std::size_t context_count() const { return h.core->contexts().size(); }

  CoreHarness h{limits()};
  CoreClient a{h, h.add_shard(small_recipe({0, 1}, "a"), 1)};
  CoreClient b{h, h.add_shard(small_recipe({0, 1}, "b"), 2)};
};

TEST_F(ReclaimOfWideExtents, AllContextsOfAnExtentGoForOneChunkElsewhere) {
  for (const char* name : {"a1", "a2", "a3", "a4", "a5"}) ASSERT_TRUE(add(a, name, 1));
  ASSERT_TRUE(add(b, "b1", 1));
  // Extent 0 of shard a holds a1 to a4; they are older than a5.
  EXPECT_EQ(h.core->status().shards.at(0).contexts, 1u);
  EXPECT_TRUE(a.resolve("a5", 1, 0).has_value());
}

TEST_F(ReclaimOfWideExtents, OnePinnedContextKeepsItsExtentAndItsNeighboursAreSpared) {
  for (const char* name : {"a1", "a2", "a3", "a4", "a5"}) ASSERT_TRUE(add(a, name, 1));
  (void)a.resolve("a2", 1, 0).value();
  const auto five = a.resolve("a5", 1, 0).value();
  EXPECT_FALSE(add(b, "b1", 1));
  EXPECT_EQ(context_count(), 6u);
  a.unpin(five);
  EXPECT_TRUE(add(b, "b1", 1));
  EXPECT_FALSE(a.resolve("a5", 1, 0).has_value());
  EXPECT_TRUE(a.resolve("a2", 1, 0).has_value());
}

TEST_F(ReclaimOfWideExtents, ChunksOfOnesOwnVictimsNeedNoWholeExtent) {
  for (const char* name : {"a1", "a2", "a3", "a4"}) ASSERT_TRUE(add(a, name, 2));
  (void)a.resolve("a1", 1, 0).value();
  (void)a.resolve("a3", 1, 0).value();
  EXPECT_TRUE(add(a, "a6", 4));
  EXPECT_EQ(context_count(), 3u);
}

}  // namespace
}  // namespace hotkv::test
