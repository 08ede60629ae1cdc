#include "daemon/core/chunk_pool.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <optional>
#include <random>
#include <set>
#include <utility>
#include <vector>

#include "tests/support/core_harness.hpp"

namespace hotkv::test {
namespace {

core::Limits one_chunk_an_extent() {
  return CoreHarness::small_limits();
}

core::Limits four_chunks_an_extent() {
  auto limits = CoreHarness::small_limits();
  limits.huge_pages = true;
  limits.chunk_tokens = 4096;  // of 128 bytes: 512 KiB
  limits.max_bytes = 8 * kHugePageBytes;
  return limits;
}

core::Limits three_chunks_and_a_tail() {
  auto limits = four_chunks_an_extent();
  limits.chunk_tokens = 5440;  // 680 KiB; 8 KiB of 2 MiB are left over
  return limits;
}

constexpr SlotIndex kSlot{3};  // whose chains they are

bool is_sound(const core::ChunkPool& chunks, Tip tip) {
  core::ChunkPool::SoundChunks none;
  return chunks.is_sound(kSlot, tip, none);
}

// A pool on its own, and heads that own chains in it.
struct Pool {
  explicit Pool(const core::Limits& limits) : h(limits), tables(h.tables(h.add_shard())) {}

  void provision(std::uint32_t extents) {
    for (std::uint32_t i = 0; i < extents; ++i) chunks.end_arrival(chunks.begin_arrival(), true);
  }
  // A chunk behind `tip`, owned by a head; the tip's owner is the new chunk from now on.
  Tip grow(Tip tip) {
    const ChunkIndex chunk = chunks.take();
    ChunkWord place;
    if (tip.is_chunk()) place = {tip.chunk(), chunks.word(tip.chunk()).ordinal + 1};
    chunks.place(kSlot, chunk, place);
    chunks.ref(chunk);
    return Tip::at(chunk);
  }
  Tip grow(Tip tip, std::uint32_t count) {
    for (; count > 0; --count) tip = grow(tip);
    return tip;
  }
  const Geometry& geometry() const { return tables.geometry(); }

  CoreHarness h;
  core::ShardTables tables;
  core::StoreGate gate;
  core::ChunkPool chunks{tables, gate};
};

TEST(ChunkPool, AChunkIsFreeExactlyWhenItHasNoOwner) {
  Pool p(one_chunk_an_extent());
  p.provision(2);
  const Tip tip = p.grow(Tip::empty());
  EXPECT_FALSE(p.chunks.is_free(tip.chunk()));
  p.chunks.ref(tip.chunk());
  p.chunks.unref(tip.chunk());
  EXPECT_FALSE(p.chunks.is_free(tip.chunk()));
  p.chunks.unref(tip.chunk());
  EXPECT_TRUE(p.chunks.is_free(tip.chunk()));
  EXPECT_EQ(p.chunks.free_count(), 2u);
}

TEST(ChunkPool, TakesTheLowestFreeChunk) {
  Pool p(one_chunk_an_extent());
  p.provision(4);
  const Tip a = p.grow(Tip::empty());
  const Tip b = p.grow(Tip::empty());
  EXPECT_EQ(a.chunk(), ChunkIndex{0});
  EXPECT_EQ(b.chunk(), ChunkIndex{1});
  p.chunks.unref(a.chunk());
  EXPECT_EQ(p.chunks.take(), ChunkIndex{0});
  EXPECT_EQ(p.chunks.take(), ChunkIndex{2});
}

TEST(ChunkPool, LettingGoOfATipFreesTheChainDownToTheSharedPart) {
  Pool p(one_chunk_an_extent());
  p.provision(8);
  const Tip stem = p.grow(Tip::empty(), 3);
  const Tip left = p.grow(stem, 2);
  p.chunks.ref(stem.chunk());  // a kept head of the stem
  const Tip right = p.grow(stem, 1);
  EXPECT_EQ(p.chunks.owners(stem.chunk()), 2u);
  EXPECT_EQ(p.chunks.exclusive_run(left).size(), 2u);
  EXPECT_EQ(p.chunks.exclusive_run(right).size(), 1u);
  EXPECT_TRUE(p.chunks.exclusive_run(stem).empty());

  p.chunks.unref(left.chunk());
  EXPECT_EQ(p.chunks.free_count(), 4u);
  EXPECT_EQ(p.chunks.exclusive_run(right).size(), 4u);
  p.chunks.unref(right.chunk());
  EXPECT_EQ(p.chunks.free_count(), 8u);
}

TEST(ChunkPool, AncestorIsTheChunkThatHoldsTheLastToken) {
  Pool p(one_chunk_an_extent());
  p.provision(3);
  const Tip first = p.grow(Tip::empty());
  const Tip second = p.grow(first);
  const Tip third = p.grow(second);
  const auto ancestor = [&](std::uint32_t length) {
    return p.chunks.ancestor(third, TokenCount{length});
  };
  EXPECT_EQ(ancestor(0), Tip::empty());
  EXPECT_EQ(ancestor(1), first);
  EXPECT_EQ(ancestor(16), first);
  EXPECT_EQ(ancestor(17), second);
  EXPECT_EQ(ancestor(32), second);
  EXPECT_EQ(ancestor(33), third);
  EXPECT_EQ(ancestor(1000), third);
  EXPECT_EQ(p.chunks.ancestor(Tip::empty(), TokenCount{5}), Tip::empty());
  EXPECT_EQ(p.chunks.capacity(third), TokenCount{48});
  EXPECT_EQ(p.chunks.capacity(Tip::empty()), TokenCount{0});
  EXPECT_EQ(p.chunks.capacity(Tip::free()), TokenCount{0});
}

TEST(ChunkPool, AnExtentIsIdleExactlyWhileAllOfItsChunksAreFree) {
  Pool p(four_chunks_an_extent());
  ASSERT_EQ(p.geometry().chunks_per_extent, 4u);
  p.provision(2);
  EXPECT_EQ(p.chunks.idle_extents(), (std::set<std::uint32_t>{0, 1}));
  const Tip a = p.grow(Tip::empty(), 4);
  EXPECT_EQ(p.chunks.idle_extents(), (std::set<std::uint32_t>{1}));
  const Tip b = p.grow(Tip::empty());
  EXPECT_TRUE(p.chunks.idle_extents().empty());
  EXPECT_EQ(p.chunks.used_in(ExtentIndex{1}), 1u);
  p.chunks.unref(b.chunk());
  p.chunks.unref(a.chunk());
  EXPECT_EQ(p.chunks.idle_extents(), (std::set<std::uint32_t>{0, 1}));
}

TEST(ChunkPool, AnExtentOnItsWayIsInNobodysUse) {
  Pool p(four_chunks_an_extent());
  const std::uint32_t all = p.geometry().extent_count;
  const ExtentIndex extent = p.chunks.begin_arrival();
  EXPECT_EQ(p.chunks.state(extent), core::ChunkPool::ExtentState::arriving);
  EXPECT_EQ(p.chunks.free_count(), 0u);
  EXPECT_EQ(p.chunks.absent_count(), all - 1);
  p.chunks.end_arrival(extent, false);
  EXPECT_EQ(p.chunks.absent_count(), all);
  EXPECT_EQ(p.chunks.begin_arrival(), extent);  // the lowest absent one again
  p.chunks.end_arrival(extent, true);
  EXPECT_EQ(p.chunks.free_count(), 4u);

  p.chunks.begin_departure(extent);
  EXPECT_EQ(p.chunks.free_count(), 0u);
  EXPECT_TRUE(p.chunks.idle_extents().empty());
  EXPECT_EQ(p.chunks.leaving_count(), 1u);
  p.chunks.end_departure(extent, false);
  EXPECT_EQ(p.chunks.free_count(), 4u);
  p.chunks.begin_departure(extent);
  p.chunks.end_departure(extent, true);
  EXPECT_EQ(p.chunks.absent_count(), all);
  EXPECT_EQ(p.chunks.present_count(), 0u);
  EXPECT_EQ(p.chunks.arriving_count() + p.chunks.leaving_count(), 0u);
}

TEST(ChunkPool, TheTailOfAnExtentIsInTheAccountAsFree) {
  CoreHarness h(three_chunks_and_a_tail());
  const auto shard = h.add_shard();
  const Geometry& g = h.files.at(shard)->geometry;
  ASSERT_EQ(g.chunks_per_extent, 3u);
  ASSERT_GT(g.extent_bytes, 3 * g.chunk_stride_bytes);
  CoreClient client(h, shard);
  ASSERT_TRUE(client.open("a", 1));
  ASSERT_TRUE(client.grant("a", 1, 1));
  const auto account = h.core->status().account;
  EXPECT_EQ(account.provisioned, g.extent_bytes);
  EXPECT_EQ(account.used, g.chunk_stride_bytes);
  EXPECT_EQ(account.free, g.extent_bytes - g.chunk_stride_bytes);
  EXPECT_EQ(h.core->verify(), std::nullopt);
}

TEST(ChunkPool, SoundChainsFallByOneToTheirFirstChunk) {
  Pool p(one_chunk_an_extent());
  p.provision(4);
  const Tip tip = p.grow(Tip::empty(), 3);
  EXPECT_TRUE(is_sound(p.chunks, tip));
  EXPECT_TRUE(is_sound(p.chunks, Tip::empty()));
  EXPECT_FALSE(is_sound(p.chunks, Tip::at(ChunkIndex{4})));  // no memory
  EXPECT_FALSE(is_sound(p.chunks, Tip::from_bits(~std::uint32_t{0})));
  // Sealed, as if the daemon itself had placed it wrongly.
  const ChunkIndex middle{1};
  const ChunkWord healthy = p.chunks.word(middle);
  const auto unsound = [&](ChunkWord word) {
    p.chunks.place(kSlot, middle, word);
    const bool is_unsound = !is_sound(p.chunks, tip);
    p.chunks.place(kSlot, middle, healthy);
    EXPECT_TRUE(is_sound(p.chunks, tip));
    return is_unsound;
  };
  EXPECT_TRUE(unsound({ChunkIndex{1}, 1}));  // a circle
  EXPECT_TRUE(unsound({ChunkIndex{2}, 1}));  // a circle of two
  EXPECT_TRUE(unsound({std::nullopt, 1}));   // no first chunk
  EXPECT_TRUE(unsound({std::nullopt, 0}));   // a gap above it
  EXPECT_TRUE(unsound({ChunkIndex{0}, 2}));
  EXPECT_TRUE(unsound({ChunkIndex{0}, 0}));
  EXPECT_TRUE(unsound({ChunkIndex{3'000'000'000}, 1}));
}

TEST(ChunkPool, AChainIsSoundForItsOwnSlotAndAsItWasPlaced) {
  Pool p(one_chunk_an_extent());
  p.provision(4);
  const Tip tip = p.grow(Tip::empty(), 3);
  core::ChunkPool::SoundChunks sound;
  EXPECT_TRUE(p.chunks.is_sound(kSlot, tip, sound));
  // Also where all of it was walked before.
  EXPECT_FALSE(p.chunks.is_sound(SlotIndex{kSlot.value() + 1}, tip, sound));
  for (AtomicWord* word : {&p.tables.chunk_word(ChunkIndex{1}), &p.tables.chunk_seal(ChunkIndex{1}),
                           &p.tables.chunk_seal(tip.chunk())}) {
    const std::uint64_t healthy = *word;
    *word = healthy ^ std::uint64_t{1} << 40;
    EXPECT_FALSE(is_sound(p.chunks, tip));
    *word = healthy;
  }
  EXPECT_TRUE(is_sound(p.chunks, tip));
}

TEST(ChunkPool, WhatIsFreeHasNoSeal) {
  Pool p(one_chunk_an_extent());
  p.provision(2);
  const Tip tip = p.grow(Tip::empty(), 2);
  EXPECT_NE(p.tables.chunk_seal(tip.chunk()), 0u);
  p.chunks.unref(tip.chunk());
  EXPECT_EQ(p.tables.chunk_seal(ChunkIndex{0}), 0u);
  EXPECT_EQ(p.tables.chunk_seal(ChunkIndex{1}), 0u);
  // What damage or a death has left: of a chunk whose memory is there, and of one whose comes.
  p.tables.chunk_seal(ChunkIndex{1}) = 7;
  p.tables.chunk_seal(ChunkIndex{2}) = 7;
  p.chunks.unseal_free();
  EXPECT_EQ(p.tables.chunk_seal(ChunkIndex{1}), 0u);
  EXPECT_EQ(p.tables.chunk_seal(ChunkIndex{2}), 7u);
  p.provision(1);
  EXPECT_EQ(p.tables.chunk_seal(ChunkIndex{2}), 0u);
}

// Random chains with shared parts, extents coming and going, against sets and lists.
class ChunkPoolProperty : public ::testing::TestWithParam<core::Limits (*)()> {
 protected:
  using Chain = std::vector<ChunkIndex>;  // first token first
  static Tip tip_of(const Chain& chain) {
    return chain.empty() ? Tip::empty() : Tip::at(chain.back());
  }
  std::uint32_t below(std::size_t n) { return static_cast<std::uint32_t>(random() % n); }
  // Takes one out of a set, if there is any.
  static std::optional<std::uint32_t> take(std::set<std::uint32_t>& from) {
    if (from.empty()) return std::nullopt;
    return from.extract(from.begin()).value();
  }

  void move_an_extent() {
    switch (below(4)) {
      case 0:
        if (p.chunks.absent_count() > 0) {
          const std::uint32_t extent = p.chunks.begin_arrival().value();
          ASSERT_FALSE(present.contains(extent) || leaving.contains(extent));
          ASSERT_TRUE(arriving.insert(extent).second);
        }
        break;
      case 1:
        if (const auto extent = take(arriving)) {
          const bool arrived = below(4) != 0;
          p.chunks.end_arrival(ExtentIndex{*extent}, arrived);
          if (arrived) present.insert(*extent);
        }
        break;
      case 2:
        if (!p.chunks.idle_extents().empty()) {
          const std::uint32_t extent = *p.chunks.idle_extents().rbegin();
          p.chunks.begin_departure(ExtentIndex{extent});
          present.erase(extent);
          leaving.insert(extent);
        }
        break;
      default:
        if (const auto extent = take(leaving)) {
          const bool departed = below(2) != 0;
          p.chunks.end_departure(ExtentIndex{*extent}, departed);
          if (!departed) present.insert(*extent);
        }
        break;
    }
  }

  void change_a_chain() {
    const std::uint32_t which = heads.empty() ? 0 : below(heads.size());
    switch (heads.empty() ? 0 : below(4)) {
      case 0:  // a head at some point of another one's chain, as after a truncate with a pin
        if (heads.size() < 12) {
          Chain chain = heads.empty() ? Chain{} : heads[which];
          chain.resize(below(chain.size() + 1));
          if (!chain.empty()) p.chunks.ref(chain.back());
          heads.push_back(std::move(chain));
        }
        break;
      case 1:
      case 2:
        if (p.chunks.free_count() > 0) {
          heads[which].push_back(p.grow(tip_of(heads[which])).chunk());
        }
        break;
      default:
        if (!heads[which].empty()) p.chunks.unref(heads[which].back());
        heads.erase(heads.begin() + which);
        break;
    }
  }

  // A head for each chain that ends here, and each different chunk that follows.
  std::map<std::uint32_t, std::uint32_t> count_owners() const {
    std::map<std::uint32_t, std::uint32_t> owners;
    std::set<std::pair<std::uint32_t, std::uint32_t>> links;
    for (const Chain& chain : heads) {
      if (!chain.empty()) ++owners[chain.back().value()];
      for (std::size_t i = 1; i < chain.size(); ++i) {
        if (links.insert({chain[i - 1].value(), chain[i].value()}).second) {
          ++owners[chain[i - 1].value()];
        }
      }
    }
    return owners;
  }

  void check(const core::ChunkPool& chunks) const {
    const auto owners = count_owners();
    const std::uint32_t per_extent = p.geometry().chunks_per_extent;
    std::set<std::uint32_t> idle;
    std::uint32_t free = 0;
    for (const std::uint32_t extent : present) {
      std::uint32_t used = 0;
      for (std::uint32_t i = 0; i < per_extent; ++i) {
        const ChunkIndex chunk{extent * per_extent + i};
        const auto owned = owners.find(chunk.value());
        ASSERT_EQ(chunks.is_free(chunk), owned == owners.end());
        ASSERT_EQ(chunks.owners(chunk), owned == owners.end() ? 0 : owned->second);
        owned == owners.end() ? ++free : ++used;
      }
      ASSERT_EQ(chunks.used_in(ExtentIndex{extent}), used);
      if (used == 0) idle.insert(extent);
    }
    ASSERT_EQ(chunks.free_count(), free);
    ASSERT_EQ(chunks.idle_extents(), idle);
    ASSERT_EQ(chunks.present_count(), present.size());
    for (const Chain& chain : heads) {
      ASSERT_TRUE(is_sound(chunks, tip_of(chain)));
      std::size_t exclusive = 0;
      while (exclusive < chain.size() &&
             owners.at(chain[chain.size() - 1 - exclusive].value()) == 1) {
        ++exclusive;
      }
      ASSERT_EQ(chunks.exclusive_run(tip_of(chain)).size(), exclusive);
    }
  }

  Pool p{GetParam()()};
  std::mt19937 random{11};
  // Each head as the list of its chunks; owners follow from the lists.
  std::vector<Chain> heads;
  std::set<std::uint32_t> present, arriving, leaving;
};

TEST_P(ChunkPoolProperty, AgreesWithANaiveModel) {
  for (int step = 0; step < 6000; ++step) {
    SCOPED_TRACE(step);
    below(2) == 0 ? move_an_extent() : change_a_chain();
    check(p.chunks);
    ASSERT_EQ(p.chunks.arriving_count(), arriving.size());
    ASSERT_EQ(p.chunks.leaving_count(), leaving.size());
    ASSERT_EQ(p.chunks.absent_count(),
              p.geometry().extent_count - present.size() - arriving.size() - leaving.size());
    if (step % 100 == 0) {
      core::ChunkPool rebuilt(p.tables, p.gate);
      rebuilt.reset();
      for (const Chain& chain : heads) rebuilt.adopt_chain(tip_of(chain));
      check(rebuilt);
    }
    if (HasFatalFailure()) return;
  }
}

INSTANTIATE_TEST_SUITE_P(Geometries, ChunkPoolProperty,
                         ::testing::Values(one_chunk_an_extent, four_chunks_an_extent,
                                           three_chunks_and_a_tail));

}  // namespace
}  // namespace hotkv::test
