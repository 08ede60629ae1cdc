#include "shared/words.hpp"

#include <gtest/gtest.h>

namespace hotkv {
namespace {

constexpr std::uint32_t kEdges[] = {0, 1, 2, 0x7fff'ffff, 0x8000'0000, 0xffff'fffe, 0xffff'ffff};

// One slot's head and length and one pin word, as both sides see them.
struct Words {
  AtomicWord head;
  AtomicWord length;
  AtomicWord pin;
};

constexpr Generation kNow{7};
constexpr Generation kNext{8};
constexpr SlotIndex kSlot{3};
constexpr Tip kTip = Tip::at(ChunkIndex{5});

// A live context: generation 7, tip chunk 5, 100 tokens published.
void store_live(Words& words) {
  words.length = LengthWord{kNow, TokenCount{100}}.bits();
  words.head = HeadWord{kNow, kTip}.bits();
  words.pin = 0;
}

TEST(Tip, StatesAreTold) {
  EXPECT_TRUE(Tip::free().is_free());
  EXPECT_FALSE(Tip::free().is_chunk());
  EXPECT_FALSE(Tip::empty().is_free());
  EXPECT_FALSE(Tip::empty().is_chunk());
  EXPECT_EQ(Tip::free().bits(), 0u) << "zeroed memory is a free slot";
  for (const std::uint32_t chunk : {0u, 1u, 0x7fff'ffffu, 0xffff'fffdu}) {
    const Tip tip = Tip::at(ChunkIndex{chunk});
    EXPECT_TRUE(tip.is_chunk()) << chunk;
    EXPECT_FALSE(tip.is_free()) << chunk;
    EXPECT_EQ(tip.chunk(), ChunkIndex{chunk});
    EXPECT_EQ(Tip::from_bits(tip.bits()), tip);
  }
}

TEST(Words, BitsComeBackForEveryEdge) {
  for (const std::uint32_t high : kEdges) {
    for (const std::uint32_t low : kEdges) {
      const HeadWord head{Generation{high}, Tip::from_bits(low)};
      EXPECT_EQ(HeadWord::from_bits(head.bits()), head);
      const LengthWord length{Generation{high}, TokenCount{low}};
      EXPECT_EQ(LengthWord::from_bits(length.bits()), length);
      if (high == 0xffff'ffff) continue;  // no slot and no chunk has this index
      const PinWord pin{SlotIndex{high}, Generation{low}};
      EXPECT_EQ(PinWord::from_bits(pin.bits()), pin);
      const ChunkWord chunk{ChunkIndex{high}, low};
      EXPECT_EQ(ChunkWord::from_bits(chunk.bits()), chunk);
    }
  }
}

TEST(Words, ZeroMeansNothing) {
  EXPECT_EQ(HeadWord::from_bits(0), (HeadWord{Generation{0}, Tip::free()}));
  EXPECT_EQ(LengthWord::from_bits(0), (LengthWord{Generation{0}, TokenCount{0}}));
  EXPECT_EQ(PinWord::from_bits(0), std::nullopt);
  EXPECT_EQ(ChunkWord::from_bits(0), (ChunkWord{std::nullopt, 0}));
}

TEST(ChunkWord, AFirstChunkHasNoneBeforeIt) {
  const ChunkWord first{std::nullopt, 9};
  EXPECT_EQ(ChunkWord::from_bits(first.bits()), first);
  EXPECT_NE(first.bits(), (ChunkWord{ChunkIndex{0}, 9}.bits()));
}

TEST(PinWord, AClaimIsNeverZeroAndNoSlotMeansNoClaim) {
  EXPECT_NE((PinWord{SlotIndex{0}, Generation{0}}.bits()), 0u);
  EXPECT_EQ(PinWord::from_bits(0x0000'0000'ffff'ffff), std::nullopt);
}

TEST(Touch, AgeIsTheTimeSince) {
  EXPECT_EQ(touch_age_ms(touch_ticks(1'000'000), 1'000'000), 0u);
  EXPECT_EQ(touch_age_ms(touch_ticks(1'000'000), 1'000'000 + 160), 160u);
  EXPECT_EQ(touch_age_ms(touch_ticks(16), 31), 0u) << "within one tick";
}

TEST(Touch, AgeSurvivesTheWrapOfTheTicks) {
  const std::uint64_t wrap_ms = (std::uint64_t{1} << 32) * kTouchTickMs;
  const std::uint32_t before = touch_ticks(wrap_ms - 1600);
  EXPECT_GT(before, touch_ticks(wrap_ms + 1600));
  EXPECT_EQ(touch_age_ms(before, wrap_ms + 1600), 3200u);
  EXPECT_EQ(touch_age_ms(0, wrap_ms), 0u);
  EXPECT_EQ(touch_age_ms(0xffff'ffff, wrap_ms), 16u);
}

TEST(Touch, ATouchFromTheFutureIsYoung) {
  const std::uint64_t now_ms = 5'000'000;
  EXPECT_EQ(touch_age_ms(touch_ticks(now_ms + 16), now_ms), 0u);
  EXPECT_EQ(touch_age_ms(touch_ticks(now_ms) + 0x7fff'ffff, now_ms), 0u);
  EXPECT_EQ(touch_age_ms(touch_ticks(now_ms) + 0x8000'0000, now_ms), 0u);
  EXPECT_EQ(touch_age_ms(touch_ticks(now_ms) + 0x8000'0001, now_ms),
            std::uint64_t{0x7fff'ffff} * kTouchTickMs);
}

TEST(Pin, ClaimsOnlyAWordThatClaimsNothing) {
  AtomicWord word{0};
  EXPECT_TRUE(claim_pin(word, {kSlot, kNow}));
  EXPECT_FALSE(claim_pin(word, {SlotIndex{4}, kNext}));
  EXPECT_EQ(load_untrusted_pin(word), (PinWord{kSlot, kNow}));
  unpin(word);
  EXPECT_EQ(load_untrusted_pin(word), std::nullopt);
  EXPECT_TRUE(claim_pin(word, {SlotIndex{4}, kNext}));
}

TEST(Pin, MovesFromOneClaimToAnother) {
  AtomicWord word{0};
  ASSERT_TRUE(claim_pin(word, {kSlot, kNow}));
  move_pin(word, {SlotIndex{0}, Generation{0}});
  EXPECT_EQ(load_untrusted_pin(word), (PinWord{SlotIndex{0}, Generation{0}}));
}

TEST(ConfirmPin, ShowsTipAndLengthOfTheGeneration) {
  Words words;
  store_live(words);
  const auto snapshot = confirm_pin(words.head, words.length, kNow);
  ASSERT_TRUE(snapshot.has_value());
  EXPECT_EQ(snapshot->tip, kTip);
  EXPECT_EQ(snapshot->length, TokenCount{100});
}

TEST(ConfirmPin, ShowsALiveContextWithoutTokens) {
  Words words;
  store_live(words);
  words.length = LengthWord{kNow, TokenCount{0}}.bits();
  words.head = HeadWord{kNow, Tip::empty()}.bits();
  const auto snapshot = confirm_pin(words.head, words.length, kNow);
  ASSERT_TRUE(snapshot.has_value());
  EXPECT_EQ(snapshot->tip, Tip::empty());
  EXPECT_EQ(snapshot->length, TokenCount{0});
}

TEST(ConfirmPin, TakesTheNewestTipOfTheGeneration) {
  Words words;
  store_live(words);
  const Tip grown = Tip::at(ChunkIndex{6});
  store_head(words.head, {kNow, grown});
  EXPECT_EQ(confirm_pin(words.head, words.length, kNow)->tip, grown);
}

TEST(ConfirmPin, FailsOnceTheLengthIsExchanged) {
  Words words;
  store_live(words);
  exchange_length(words.length, {kNext, TokenCount{100}});
  EXPECT_EQ(confirm_pin(words.head, words.length, kNow), std::nullopt);
  EXPECT_EQ(confirm_pin(words.head, words.length, kNext), std::nullopt) << "not yet begun";
  store_head(words.head, {kNext, kTip});
  EXPECT_EQ(confirm_pin(words.head, words.length, kNow), std::nullopt);
  EXPECT_TRUE(confirm_pin(words.head, words.length, kNext).has_value());
}

TEST(ConfirmPin, FailsIfTheGenerationEndedBehindTheLoadOfTheLength) {
  // What a client sees that loaded the length before the daemon's exchange, the head after its
  // store.
  Words words;
  store_live(words);
  store_head(words.head, {kNext, Tip::at(ChunkIndex{6})});
  EXPECT_EQ(confirm_pin(words.head, words.length, kNow), std::nullopt);
  EXPECT_EQ(confirm_pin(words.head, words.length, kNext), std::nullopt);
}

TEST(ConfirmPin, FailsOnAFreeSlot) {
  Words words;
  store_live(words);
  store_head(words.head, {kNow, Tip::free()});
  EXPECT_EQ(confirm_pin(words.head, words.length, kNow), std::nullopt);
}

TEST(ConfirmPin, FailsIfAWriterSpoiledTheLengthWord) {
  Words words;
  store_live(words);
  for (const std::uint64_t bits : {std::uint64_t{0}, ~std::uint64_t{0}}) {
    words.length = bits;
    EXPECT_EQ(confirm_pin(words.head, words.length, kNow), std::nullopt);
  }
}

TEST(Publish, MakesTokensVisible) {
  Words words;
  store_live(words);
  EXPECT_TRUE(publish(words.length, kNow, TokenCount{100}, TokenCount{101}));
  EXPECT_EQ(confirm_pin(words.head, words.length, kNow)->length, TokenCount{101});
}

TEST(Publish, FailsFromAnotherLengthAndChangesNothing) {
  Words words;
  store_live(words);
  EXPECT_FALSE(publish(words.length, kNow, TokenCount{99}, TokenCount{101}));
  EXPECT_FALSE(publish(words.length, kNext, TokenCount{100}, TokenCount{101}));
  EXPECT_EQ(words.length.load(), (LengthWord{kNow, TokenCount{100}}.bits()));
}

TEST(Publish, IsCutOffByTheDaemonsExchange) {
  Words words;
  store_live(words);
  const LengthWord before = exchange_length(words.length, {kNext, TokenCount{100}});
  EXPECT_EQ(before, (LengthWord{kNow, TokenCount{100}}));
  EXPECT_FALSE(publish(words.length, kNow, TokenCount{100}, TokenCount{101}));
  EXPECT_EQ(words.length.load(), (LengthWord{kNext, TokenCount{100}}.bits()));
}

TEST(Publish, BeforeTheExchangeIsInWhatTheExchangeReturns) {
  Words words;
  store_live(words);
  ASSERT_TRUE(publish(words.length, kNow, TokenCount{100}, TokenCount{101}));
  const LengthWord before = exchange_length(words.length, {kNext, TokenCount{0}});
  EXPECT_EQ(before.tokens, TokenCount{101});
}

}  // namespace
}  // namespace hotkv
