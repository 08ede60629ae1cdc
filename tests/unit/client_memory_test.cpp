// The parts that read and write a shard's words: index, pin words, chains.

#include <gtest/gtest.h>

#include <algorithm>
#include <memory>
#include <thread>

#include "client/library/chain_cache.hpp"
#include "client/library/pin_words.hpp"
#include "client/library/session_index.hpp"
#include "tests/support/fake_daemon.hpp"

namespace hotkv::client {
namespace {

using fake::session_id;

// ---- pin words ----------------------------------------------------------------------------------

TEST(PinWords, AClaimStandsInThePageBelowTheHighWaterMark) {
  const auto page = std::make_unique<ClientPage>();
  PinWords pins(*page);
  const auto index = pins.claim({SlotIndex{5}, Generation{9}});
  ASSERT_TRUE(index.has_value());
  EXPECT_EQ(load_untrusted_pin(page->pins[*index]), (PinWord{SlotIndex{5}, Generation{9}}));
  EXPECT_GT(page->high_water.load(), *index);
  pins.unpin(*index);
  EXPECT_FALSE(load_untrusted_pin(page->pins[*index]).has_value());
}

TEST(PinWords, EveryWordCanBeClaimedOnceAndThenNone) {
  const auto page = std::make_unique<ClientPage>();
  PinWords pins(*page);
  std::vector<std::uint32_t> claimed;
  for (std::uint32_t i = 0; i < kPinsPerPage; ++i) {
    const auto index = pins.claim({SlotIndex{0}, Generation{0}});
    ASSERT_TRUE(index.has_value()) << i;
    claimed.push_back(*index);
  }
  std::ranges::sort(claimed);
  EXPECT_EQ(std::ranges::adjacent_find(claimed), claimed.end());
  EXPECT_EQ(page->high_water.load(), kPinsPerPage);
  EXPECT_FALSE(pins.claim({SlotIndex{0}, Generation{0}}).has_value());
  pins.unpin(500);
  EXPECT_EQ(pins.claim({SlotIndex{0}, Generation{0}}), 500u);
}

TEST(PinWords, ThreadsNeverShareAWord) {
  const auto page = std::make_unique<ClientPage>();
  PinWords pins(*page);
  std::atomic<int> owners[kPinsPerPage] = {};
  std::atomic<bool> shared{false};
  std::vector<std::thread> threads;
  for (int t = 0; t < 4; ++t) {
    threads.emplace_back([&] {
      for (int i = 0; i < 20'000; ++i) {
        const auto index = pins.claim({SlotIndex{1}, Generation{1}});
        if (!index || owners[*index].fetch_add(1) != 0) shared = true;
        owners[*index].fetch_sub(1);
        pins.unpin(*index);
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_FALSE(shared);
}

TEST(Pin, UnpinsUnlessItWasReleased) {
  const auto page = std::make_unique<ClientPage>();
  PinWords pins(*page);
  const std::uint32_t first = *pins.claim({SlotIndex{1}, Generation{1}});
  { const Pin pin(pins, first); }
  EXPECT_EQ(page->pins[first].load(), 0u);
  const std::uint32_t second = *pins.claim({SlotIndex{1}, Generation{1}});
  {
    Pin pin(pins, second);
    const Pin moved(std::move(pin));
    EXPECT_NE(page->pins[second].load(), 0u);
  }
  EXPECT_EQ(page->pins[second].load(), 0u);
  const std::uint32_t third = *pins.claim({SlotIndex{1}, Generation{1}});
  EXPECT_EQ(Pin(pins, third).release(), third);
  EXPECT_NE(page->pins[third].load(), 0u);
}

// ---- chains -------------------------------------------------------------------------------------

constexpr SlotIndex kSlot{3};
constexpr Generation kNow{7};

struct Words {
  std::vector<AtomicWord> words = std::vector<AtomicWord>(64);
  std::vector<std::uint32_t> chain;

  // Links `chunk` behind the last one.
  void link(std::uint32_t chunk) {
    ChunkWord word;
    if (!chain.empty()) word.previous = ChunkIndex{chain.back()};
    word.ordinal = static_cast<std::uint32_t>(chain.size());
    words[chunk] = word.bits();
    chain.push_back(chunk);
  }
  [[nodiscard]] Tip tip() const { return Tip::at(ChunkIndex{chain.back()}); }
};

std::vector<std::uint32_t> chunks_of(const Chain& chain) {
  std::vector<std::uint32_t> chunks;
  for (std::uint32_t i = 0; i < chain.size; ++i) chunks.push_back(chain.chunks[i].value());
  return chunks;
}

TEST(ChainCache, WalksFromTheTipToTheFirstChunk) {
  Words words;
  for (const std::uint32_t chunk : {40u, 2u, 63u, 0u}) words.link(chunk);
  ChainCache cache(words.words);
  const auto chain = cache.chain(kSlot, kNow, words.tip(), 4);
  ASSERT_TRUE(chain.has_value()) << chain.error().message();
  EXPECT_EQ(chunks_of(**chain), words.chain);
}

TEST(ChainCache, AnEmptyContextHasNoChunks) {
  Words words;
  ChainCache cache(words.words);
  EXPECT_EQ((*cache.chain(kSlot, kNow, Tip::empty(), 0))->size, 0u);
  EXPECT_EQ(cache.chain(kSlot, kNow, Tip::empty(), 1).error().code, ErrorCode::shard_damaged);
}

TEST(ChainCache, WalksOnlyTheNewPartAndLeavesOlderChainsAsTheyWere) {
  Words words;
  words.link(10);
  ChainCache cache(words.words);
  std::vector<ChainRef> seen{*cache.chain(kSlot, kNow, words.tip(), 1)};
  for (std::uint32_t chunk = 11; chunk < 40; ++chunk) {
    words.link(chunk);
    // What is known is not read again: a word that changes would be noticed.
    words.words[10] = ~std::uint64_t{0};
    const auto chain = cache.chain(kSlot, kNow, words.tip(), words.chain.size() & 0xff);
    ASSERT_TRUE(chain.has_value()) << chain.error().message();
    seen.push_back(*chain);
  }
  for (std::size_t i = 0; i < seen.size(); ++i) {
    EXPECT_EQ(chunks_of(*seen[i]),
              std::vector(words.chain.begin(), words.chain.begin() + static_cast<int>(i) + 1));
  }
}

TEST(ChainCache, GrowingCopiesSeldom) {
  Words words;
  words.link(0);
  ChainCache cache(words.words);
  const ChunkIndex* storage = (*cache.chain(kSlot, kNow, words.tip(), 1))->chunks.get();
  int copies = 0;
  for (std::uint32_t chunk = 1; chunk < 64; ++chunk) {
    words.link(chunk);
    const auto chain = *cache.chain(kSlot, kNow, words.tip(), 1);
    if (chain->chunks.get() != storage) ++copies;
    storage = chain->chunks.get();
  }
  EXPECT_LE(copies, 6);
}

TEST(ChainCache, AnOlderTipOfTheSameGenerationIsServedByTheLongerChain) {
  Words words;
  words.link(5);
  const Tip old_tip = words.tip();
  words.link(6);
  ChainCache cache(words.words);
  const auto longer = cache.chain(kSlot, kNow, words.tip(), 2);
  const auto older = cache.chain(kSlot, kNow, old_tip, 1);
  ASSERT_TRUE(older.has_value());
  EXPECT_EQ(*older, *longer);
}

TEST(ChainCache, ANewGenerationIsWalkedAnew) {
  Words words;
  words.link(5);
  words.link(6);
  ChainCache cache(words.words);
  ASSERT_TRUE(cache.chain(kSlot, kNow, words.tip(), 2).has_value());
  Words other;
  other.link(9);
  other.link(6);
  for (std::size_t i = 0; i < other.words.size(); ++i) words.words[i] = other.words[i].load();
  const auto chain = cache.chain(kSlot, Generation{8}, other.tip(), 2);
  EXPECT_EQ(chunks_of(**chain), (std::vector<std::uint32_t>{9, 6}));
  // A late reader of the old generation does not push the new one out.
  EXPECT_TRUE(cache.chain(kSlot, kNow, other.tip(), 2).has_value());
  EXPECT_EQ(*cache.chain(kSlot, Generation{8}, other.tip(), 2), *chain);
}

TEST(ChainCache, ContradictionsAreDamageAndNeverALoop) {
  const auto damaged = [](auto break_it, std::uint32_t chunks_min = 1) {
    Words words;
    for (const std::uint32_t chunk : {1u, 2u, 3u, 4u}) words.link(chunk);
    break_it(words.words);
    ChainCache cache(words.words);
    const auto chain = cache.chain(kSlot, kNow, Tip::at(ChunkIndex{4}), chunks_min);
    return !chain && chain.error().code == ErrorCode::shard_damaged;
  };
  const auto word = [](std::optional<std::uint32_t> previous, std::uint32_t ordinal) {
    ChunkWord made;
    if (previous) made.previous = ChunkIndex{*previous};
    made.ordinal = ordinal;
    return made.bits();
  };
  EXPECT_FALSE(damaged([](auto&) {}));
  EXPECT_TRUE(damaged([](auto&) {}, 5)) << "shorter than the length needs";
  EXPECT_TRUE(damaged([&](auto& w) { w[2] = word(4, 1); })) << "a cycle";
  EXPECT_TRUE(damaged([&](auto& w) { w[4] = word(4, 3); })) << "its own predecessor";
  EXPECT_TRUE(damaged([&](auto& w) { w[2] = word(64, 1); })) << "beyond the arena";
  EXPECT_TRUE(damaged([&](auto& w) { w[2] = word({}, 1); })) << "ends too early";
  EXPECT_TRUE(damaged([&](auto& w) { w[1] = word(9, 0); })) << "does not end";
  EXPECT_TRUE(damaged([&](auto& w) { w[3] = word(2, 1); })) << "an ordinal is left out";
  EXPECT_TRUE(damaged([&](auto& w) { w[4] = word(3, 64); })) << "ordinal beyond the arena";
  EXPECT_TRUE(damaged([&](auto& w) { w[4] = ~std::uint64_t{0}; }));
  Words words;
  ChainCache cache(words.words);
  EXPECT_FALSE(cache.chain(kSlot, kNow, Tip::at(ChunkIndex{64}), 1).has_value());
  EXPECT_FALSE(cache.chain(kSlot, kNow, Tip::from_bits(0xffff'ffff), 1).has_value());
}

TEST(ChainCache, AChainThatDoesNotContinueTheKnownOneIsDamage) {
  Words words;
  for (const std::uint32_t chunk : {1u, 2u, 3u}) words.link(chunk);
  ChainCache cache(words.words);
  ASSERT_TRUE(cache.chain(kSlot, kNow, words.tip(), 3).has_value());
  words.words[9] = ChunkWord{ChunkIndex{2}, 3}.bits();
  EXPECT_FALSE(cache.chain(kSlot, kNow, Tip::at(ChunkIndex{9}), 1).has_value());
  words.words[9] = ChunkWord{ChunkIndex{1}, 1}.bits();
  EXPECT_FALSE(cache.chain(kSlot, kNow, Tip::at(ChunkIndex{9}), 1).has_value());
}

TEST(ChainCache, ThreadsSeeWholeChainsWhileOneGrows) {
  Words words;
  words.link(0);
  ChainCache cache(words.words);
  std::atomic<std::uint32_t> tip{0};
  std::atomic<bool> wrong{false};
  std::thread grower([&] {
    for (std::uint32_t chunk = 1; chunk < 64; ++chunk) {
      words.link(chunk);
      tip.store(chunk, std::memory_order_release);
      std::this_thread::yield();
    }
  });
  std::vector<std::thread> readers;
  for (int t = 0; t < 3; ++t) {
    readers.emplace_back([&] {
      for (std::uint32_t seen = 0; seen < 63;) {
        seen = tip.load(std::memory_order_acquire);
        const auto chain = cache.chain(kSlot, kNow, Tip::at(ChunkIndex{seen}), seen + 1);
        if (!chain) {
          wrong = true;
          return;
        }
        for (std::uint32_t i = 0; i <= seen; ++i) {
          if ((*chain)->chunks[i].value() != i) wrong = true;
        }
      }
    });
  }
  grower.join();
  for (std::thread& reader : readers) reader.join();
  EXPECT_FALSE(wrong);
}

// ---- index --------------------------------------------------------------------------------------

struct Index {
  static constexpr std::uint64_t kKey[2] = {3, 5};
  std::vector<IndexEntry> entries = std::vector<IndexEntry>(16);
  std::unique_ptr<SlotRecord[]> slots = std::make_unique<SlotRecord[]>(8);

  [[nodiscard]] SessionIndex index() const { return {entries, std::span(slots.get(), 8), kKey}; }
  void put(std::uint32_t slot, const SessionId& session, Epoch epoch, std::uint64_t skip = 0) {
    SlotRecord& record = slots[slot];
    std::ranges::copy(session.words(), record.id);
    record.id_bytes = session.size_bytes();
    record.epoch = epoch.value();
    record.head = HeadWord{Generation{4}, Tip::empty()}.bits();
    const std::uint64_t hash = session_hash(session, kKey);
    entries[(hash + skip) & 15] = index_entry(hash, SlotIndex{slot});
  }
};

TEST(SessionIndex, FindsExactlyTheSessionAndEpoch) {
  Index index;
  index.put(2, session_id("a"), Epoch{1});
  const auto place = index.index().find(session_id("a"), Epoch{1});
  ASSERT_TRUE(place.has_value());
  EXPECT_EQ(place->slot, SlotIndex{2});
  EXPECT_EQ(place->head.generation, Generation{4});
  EXPECT_FALSE(index.index().find(session_id("a"), Epoch{2}).has_value());
  EXPECT_FALSE(index.index().find(session_id("b"), Epoch{1}).has_value());
  EXPECT_FALSE(index.index().find(session_id(std::string_view("a\0", 2)), Epoch{1}).has_value());
}

TEST(SessionIndex, AFreeHeadHidesWhatTheSlotStillSays) {
  Index index;
  index.put(2, session_id("a"), Epoch{1});
  index.slots[2].head = HeadWord{Generation{5}, Tip::free()}.bits();
  EXPECT_FALSE(index.index().find(session_id("a"), Epoch{1}).has_value());
}

TEST(SessionIndex, AnEntryOfAnotherSessionWithTheSameTagIsPassedOver) {
  Index index;
  const SessionId a = session_id("a");
  index.put(1, session_id("other"), Epoch{1});
  const std::uint64_t hash = session_hash(a, Index::kKey);
  index.put(2, a, Epoch{1}, 1);
  index.entries[hash & 15] = index_entry(hash, SlotIndex{1});
  EXPECT_EQ(index.index().find(a, Epoch{1})->slot, SlotIndex{2});
}

TEST(SessionIndex, SlotsThatAreNoneAreNotTouchedAndAFullIndexEnds) {
  Index index;
  const SessionId a = session_id("a");
  const std::uint64_t hash = session_hash(a, Index::kKey);
  for (IndexEntry& entry : index.entries) entry = index_entry(hash, SlotIndex{8});
  index.entries[(hash + 3) & 15] = hash | 0xffff'ffff;
  EXPECT_FALSE(index.index().find(a, Epoch{1}).has_value());
}

}  // namespace
}  // namespace hotkv::client
