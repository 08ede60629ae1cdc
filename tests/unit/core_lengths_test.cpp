// Lengths: exact at every edge, one source, absolute, and checked against what the caller expected.

#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <random>
#include <string>
#include <variant>
#include <vector>

#include "daemon/core/core.hpp"
#include "tests/support/core_harness.hpp"

namespace hotkv::test {
namespace {

constexpr std::uint32_t kPage = 16;  // tokens of a chunk

class CoreLengths : public ::testing::Test {
 protected:
  void TearDown() override { EXPECT_EQ(h.core->verify(), std::nullopt); }

  Generation generation(SlotIndex slot) const {
    return load_head(h.tables(shard).slot(slot).head).generation;
  }
  // The context is the list: length, bytes, and no other length.
  void expect_list(const std::vector<std::uint32_t>& list) {
    const auto length = static_cast<std::uint32_t>(list.size());
    auto view = worker.resolve("s", 1, length);
    ASSERT_TRUE(view.has_value()) << view.error().message();
    EXPECT_EQ(view->length, TokenCount{length});
    EXPECT_EQ(worker.wrong_bytes("s", 1, *view, list), 0u);
    worker.unpin(*view);
    EXPECT_TRUE(worker.resolve("s", 1, length + 1).error().is(MissReason::seq_len_mismatch));
    if (length > 0) {
      EXPECT_TRUE(worker.resolve("s", 1, length - 1).error().is(MissReason::seq_len_mismatch));
    }
  }
  void append(std::vector<std::uint32_t>& list, std::uint32_t tokens, std::uint32_t version) {
    ASSERT_EQ(worker.append("s", 1, tokens, version),
              TokenCount{static_cast<std::uint32_t>(list.size()) + tokens});
    list.resize(list.size() + tokens, version);
  }

  CoreHarness h;
  core::ShardId shard = h.add_shard();
  CoreClient worker{h, shard};
};

// FR-112: back to the length before the last append, at every edge of a chunk, pinned or not.
TEST_F(CoreLengths, RollingBackExactlyTheLastAppendIsDone) {
  const std::uint32_t sizes[] = {1, kPage - 1, kPage, kPage + 1, 2 * kPage};
  CoreClient reader(h, shard, Access::read);
  for (const std::uint32_t a : sizes) {
    for (const std::uint32_t b : sizes) {
      for (const std::uint32_t c : sizes) {
        for (const bool is_pinned : {false, true}) {
          SCOPED_TRACE(testing::Message() << a << ' ' << b << ' ' << c << ' ' << is_pinned);
          const auto slot = worker.open("s", 1)->slot;
          std::vector<std::uint32_t> list;
          append(list, a, 1);
          append(list, b, 2);
          const auto old_list = list;
          const auto view = reader.resolve("s", 1, a + b).value();
          if (!is_pinned) reader.unpin(view);
          const Generation before = generation(slot);
          EXPECT_EQ(worker.truncate("s", 1, a)->length, TokenCount{a});
          EXPECT_GT(generation(slot), before);
          list.resize(a);
          expect_list(list);
          append(list, c, 3);
          expect_list(list);
          if (is_pinned) {
            EXPECT_EQ(reader.wrong_bytes("s", 1, view, old_list), 0u);
            reader.unpin(view);
          }
          ASSERT_TRUE(worker.release("s", 1));
        }
      }
    }
  }
}

// FR-113: one length. What one layer's writer did not finish is not in it, and the next append goes
// where the published length says, or is refused.
TEST_F(CoreLengths, AnUnfinishedAppendIsNoPartOfTheLength) {
  ASSERT_TRUE(worker.open("s", 1));
  std::vector<std::uint32_t> list;
  append(list, 20, 1);
  const auto granted = worker.grant("s", 1, 100).value();
  const auto writer = worker.pin_for_writing(granted).value();
  worker.write("s", 1, writer, 20, 60, 9);  // and never published
  expect_list(list);
  ASSERT_TRUE(worker.truncate("s", 1, 12));
  list.resize(12);
  expect_list(list);
  EXPECT_FALSE(worker.publish(writer, 20, 60));
  worker.unpin(writer);
  append(list, 30, 2);
  expect_list(list);
}

TEST_F(CoreLengths, APublishFromAnotherLengthThanTheWriterThinksIsRefused) {
  ASSERT_TRUE(worker.open("s", 1));
  std::vector<std::uint32_t> list;
  append(list, 20, 1);
  const auto granted = worker.grant("s", 1, 40).value();
  const auto writer = worker.pin_for_writing(granted).value();
  for (const std::uint32_t from : {0u, 19u, 21u}) EXPECT_FALSE(worker.publish(writer, from, 30));
  expect_list(list);
  worker.unpin(writer);
}

// FR-115: a speculative decoder that rewinds by absolute lengths, against a list; planted errors of
// one are refused in their first round.
TEST_F(CoreLengths, DraftAndVerifyRoundsNeverDrift) {
  ASSERT_TRUE(worker.open("s", 1));
  std::mt19937 random(115);
  std::vector<std::uint32_t> list;
  append(list, 5, 0);
  for (std::uint32_t round = 1; round <= 3000; ++round) {
    const auto base = static_cast<std::uint32_t>(list.size());
    const auto drafted = 1 + static_cast<std::uint32_t>(random() % 8);
    const auto accepted = static_cast<std::uint32_t>(random() % (drafted + 1));
    append(list, drafted, round);
    const std::uint32_t from = base + drafted;
    const std::uint32_t to = base + accepted;
    const auto slot = SlotIndex{0};
    for (const std::uint32_t wrong_from : {from - 1, from + 1}) {
      if (wrong_from == to || from == to) continue;
      const auto refused = h.core->truncate(worker.client, id("s"), Epoch{1}, generation(slot),
                                            TokenCount{wrong_from}, TokenCount{to});
      ASSERT_FALSE(refused.has_value());
      ASSERT_TRUE(refused.error().is(ErrorCode::length_mismatch));
    }
    ASSERT_EQ(worker.truncate("s", 1, to)->length, TokenCount{to});
    list.resize(to);
    if (round % 50 == 0) expect_list(list);
    if (list.size() > 600) {
      ASSERT_TRUE(worker.truncate("s", 1, 5));
      list.resize(5);
    }
  }
  expect_list(list);
}

// FR-107: of n granted tokens n - 1 are written and published: that is the length, the last granted
// place is no token of anybody's, and the next append begins there.
TEST_F(CoreLengths, APlaceThatWasGrantedAndNotWrittenIsNoToken) {
  for (const std::uint32_t granted : {2u, kPage - 1, kPage, kPage + 1, 2 * kPage}) {
    SCOPED_TRACE(granted);
    ASSERT_TRUE(worker.open("s", 1));
    const auto position = worker.grant("s", 1, granted).value();
    const auto writer = worker.pin_for_writing(position).value();
    worker.write("s", 1, writer, 0, granted - 1, 1);
    expect_list({});
    ASSERT_TRUE(worker.publish(writer, 0, granted - 1));
    worker.unpin(writer);
    std::vector<std::uint32_t> list(granted - 1, 1);
    expect_list(list);
    append(list, 3, 2);
    expect_list(list);
    ASSERT_TRUE(worker.release("s", 1));
  }
}

// FR-109: an append that fails, at once or when its memory does not come, leaves length, generation
// and every byte of an empty, a filled and a pinned context as they were, and the next one works.
TEST_F(CoreLengths, AnAppendThatFailsLeavesTheContextAsItWas) {
  for (const std::uint32_t length : {0u, kPage, kPage + 4}) {
    for (const bool is_pinned : {false, true}) {
      SCOPED_TRACE(testing::Message() << length << ' ' << is_pinned);
      const auto slot = worker.open("s", 1)->slot;
      std::vector<std::uint32_t> list;
      if (length > 0) append(list, length, 1);
      const auto view = worker.resolve("s", 1, length).value();
      if (!is_pinned) worker.unpin(view);
      const Generation before = generation(slot);
      EXPECT_TRUE(worker.grant("s", 1, 65 * kPage).error().is(ErrorCode::budget_exceeded));
      const auto answer =
          h.core->append(worker.client, id("s"), Epoch{1}, before, TokenCount{40 * kPage});
      ASSERT_TRUE(std::holds_alternative<core::Waiting>(answer));
      const auto orders = h.core->take_memory_orders();
      ASSERT_FALSE(orders.empty());
      for (const core::MemoryOrder& order : orders) {
        const Error failure{ErrorCode::memory_unavailable, "provision", "arena", "none left", 0};
        h.core->memory_order_done(order.id, std::unexpected(failure), false);
      }
      const auto finished = h.core->take_finished_grants();
      ASSERT_EQ(finished.size(), 1u);
      EXPECT_TRUE(finished[0].outcome.error().is(ErrorCode::memory_unavailable));
      EXPECT_EQ(generation(slot), before);
      expect_list(list);
      if (is_pinned) {
        EXPECT_EQ(worker.wrong_bytes("s", 1, view, list), 0u);
        worker.unpin(view);
      }
      append(list, kPage, 2);
      expect_list(list);
      ASSERT_TRUE(worker.release("s", 1));
    }
  }
}

// FR-121: nothing is ever moved: while a context's generation stands, its tokens stay in the chunks
// in which they were first seen.
TEST_F(CoreLengths, TokensNeverMoveWithinAGeneration) {
  std::mt19937 random(121);
  std::map<std::string, CoreView> seen;
  std::map<std::string, std::uint32_t> lengths;
  std::uint32_t comparisons = 0;
  for (int round = 0; round < 4000; ++round) {
    const std::string name = "s" + std::to_string(random() % 6);
    const auto tokens = 1 + static_cast<std::uint32_t>(random() % 40);
    std::uint32_t& length = lengths[name];
    ASSERT_TRUE(worker.open(name, 1));
    if (random() % 8 == 0) {
      ASSERT_TRUE(worker.release(name, 1));
      length = 0;
      ASSERT_TRUE(worker.open(name, 1));
    } else if (random() % 3 == 0) {
      length /= 2;
      ASSERT_TRUE(worker.truncate(name, 1, length));
    } else if (length + tokens <= 8 * kPage) {
      length += tokens;
      ASSERT_EQ(worker.append(name, 1, tokens), TokenCount{length});
    }
    const auto view = worker.resolve(name, 1, length).value();
    worker.unpin(view);
    if (const auto before = seen.find(name); before != seen.end() &&
                                             before->second.slot == view.slot &&
                                             before->second.generation == view.generation) {
      const auto& old_chunks = before->second.chunks;
      ASSERT_LE(old_chunks.size(), view.chunks.size());
      ASSERT_TRUE(std::equal(old_chunks.begin(), old_chunks.end(), view.chunks.begin()));
      comparisons += old_chunks.empty() ? 0 : 1;
    }
    seen.insert_or_assign(name, view);
  }
  EXPECT_GT(comparisons, 1000u);
}

TEST_F(CoreLengths, ATruncateToMoreThanThereIsIsRefused) {
  ASSERT_TRUE(worker.open("s", 1));
  ASSERT_TRUE(worker.append("s", 1, 20));
  const auto refused = worker.truncate("s", 1, 21);
  ASSERT_FALSE(refused.has_value());
  EXPECT_TRUE(refused.error().is(ErrorCode::invalid_argument));
  EXPECT_EQ(worker.truncate("s", 1, 20)->length, TokenCount{20});
}

// FR-116: lengths are tokens, never rounded to chunks.
TEST_F(CoreLengths, ALengthIsNeverRoundedToChunks) {
  for (const std::uint32_t length : {0u, 1u, kPage - 1, kPage, kPage + 1, 40u}) {
    SCOPED_TRACE(length);
    ASSERT_TRUE(worker.open("s", 1));
    std::vector<std::uint32_t> list;
    if (length > 0) append(list, length, 1);
    expect_list(list);
    const auto told = [&](std::uint32_t expected, LengthMatch match) {
      return h.core->explain(worker.client, id("s"), Epoch{1},
                             h.core->recipe_of(shard).fingerprint(), TokenCount{expected}, match);
    };
    EXPECT_EQ(told(length, LengthMatch::exact)->length, TokenCount{length});
    EXPECT_EQ(told(0, LengthMatch::any)->length, TokenCount{length});
    EXPECT_EQ(told(length / 2, LengthMatch::at_least)->length, TokenCount{length});
    const auto above = told(length + 1, LengthMatch::at_least);
    ASSERT_FALSE(above.has_value());
    EXPECT_TRUE(above.error().is(MissReason::seq_len_mismatch));
    EXPECT_EQ(above.error().miss().known_length, TokenCount{length});
    if (length > 2) {
      ASSERT_TRUE(worker.truncate("s", 1, length - 2));
      list.resize(length - 2);
      expect_list(list);
    }
    ASSERT_TRUE(worker.release("s", 1));
  }
}

}  // namespace
}  // namespace hotkv::test
