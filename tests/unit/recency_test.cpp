#include "daemon/core/recency.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <random>

#include "tests/support/core_harness.hpp"

namespace hotkv::test {
namespace {

std::vector<std::uint32_t> order_of(const core::Recency& recency) {
  std::vector<std::uint32_t> slots;
  for (auto at = recency.oldest(); at; at = recency.after(*at)) slots.push_back(at->slot.value());
  return slots;
}

TEST(Recency, WalksFromTheLeastRecentlyUsed) {
  core::Recency recency;
  recency.touch(SlotIndex{5}, 30);
  recency.touch(SlotIndex{1}, 10);
  recency.touch(SlotIndex{9}, 20);
  EXPECT_EQ(order_of(recency), (std::vector<std::uint32_t>{1, 9, 5}));
  recency.touch(SlotIndex{1}, 40);
  EXPECT_EQ(order_of(recency), (std::vector<std::uint32_t>{9, 5, 1}));
  recency.remove(SlotIndex{5});
  recency.remove(SlotIndex{5});
  EXPECT_EQ(order_of(recency), (std::vector<std::uint32_t>{9, 1}));
  EXPECT_FALSE(recency.contains(SlotIndex{5}));
  EXPECT_FALSE(recency.contains(SlotIndex{1000}));
}

TEST(Recency, AWalkGoesOnBehindAnEntryThatWasRemovedOrTouched) {
  core::Recency recency;
  for (std::uint32_t slot = 0; slot < 4; ++slot) recency.touch(SlotIndex{slot}, slot);
  const auto first = recency.oldest().value();
  recency.remove(first.slot);
  const auto second = recency.after(first).value();
  EXPECT_EQ(second.slot, SlotIndex{1});
  recency.touch(second.slot, 100);
  EXPECT_EQ(recency.after(second)->slot, SlotIndex{2});
}

TEST(Recency, OfUsesInOneMillisecondTheOneToldLaterIsLater) {
  core::Recency recency;
  for (const std::uint32_t slot : {7u, 2u, 5u}) recency.touch(SlotIndex{slot}, 10);
  EXPECT_EQ(order_of(recency), (std::vector<std::uint32_t>{7, 2, 5}));
  recency.touch(SlotIndex{7}, 10);
  EXPECT_EQ(order_of(recency), (std::vector<std::uint32_t>{2, 5, 7}));
}

TEST(Recency, AgreesWithASortedList) {
  std::mt19937 random(9);
  const auto below = [&](std::size_t n) { return static_cast<std::uint32_t>(random() % n); };
  core::Recency recency;
  std::map<std::uint32_t, std::pair<std::uint64_t, int>> model;  // used, and told, when
  for (int step = 0; step < 5000; ++step) {
    const std::uint32_t slot = below(30);
    if (below(3) == 0) {
      recency.remove(SlotIndex{slot});
      model.erase(slot);
    } else {
      const std::uint64_t used = below(50);
      recency.touch(SlotIndex{slot}, used);
      model[slot] = {used, step};
    }
    std::vector<std::pair<std::pair<std::uint64_t, int>, std::uint32_t>> sorted;
    for (const auto& [each, used] : model) sorted.emplace_back(used, each);
    std::ranges::sort(sorted);
    std::vector<std::uint32_t> slots;
    for (const auto& [used, each] : sorted) slots.push_back(each);
    ASSERT_EQ(order_of(recency), slots);
    ASSERT_EQ(recency.count(), model.size());
  }
}

// A touch word is any client's to write: it can make a context look used lately, never unused.
TEST(Recency, AWildTouchWordCanOnlyMeanUsedLately) {
  CoreHarness h;
  const auto shard = h.add_shard();
  CoreClient client(h, shard);
  ASSERT_TRUE(client.open("a", 1));
  ASSERT_TRUE(client.append("a", 1, 5));
  ASSERT_TRUE(client.open("b", 1));
  h.now_ms += h.limits.ttl_ms / 2;
  ASSERT_TRUE(client.append("b", 1, 5));
  TouchWord& touch = h.tables(shard).untrusted_touch(SlotIndex{1});
  for (const std::uint32_t wild :
       {0u, 1u, 0x7fff'ffffu, 0x8000'0000u, ~0u, touch_ticks(h.now_ms) + 1}) {
    touch = wild;
    h.core->tick();
    const auto idle_ms = h.core->contexts().at(1).idle_ms;
    EXPECT_EQ(idle_ms, 0u) << wild;  // the daemon saw it used at this moment
  }
  // From the future, its age is 0: it lives on, and the walk over it ends.
  h.now_ms += h.limits.ttl_ms;
  touch = touch_ticks(h.now_ms) + 1000;
  h.core->tick();
  EXPECT_TRUE(client.resolve("a", 1, 5).error().is(MissReason::evicted_ttl));
  EXPECT_TRUE(client.resolve("b", 1, 5).has_value());
}

// Ticks are 16 ms: read as later than it was, a touch would pass over what the daemon saw since.
TEST(Recency, ATouchDoesNotPassOverALaterUseThatTheDaemonSaw) {
  CoreHarness h;
  const auto shard = h.add_shard();
  CoreClient client(h, shard);
  h.now_ms = 1'600'000;  // a tick begins
  ASSERT_TRUE(client.open("a", 1));
  ASSERT_TRUE(client.append("a", 1, 5));
  h.tables(shard).untrusted_touch(SlotIndex{0}) = touch_ticks(h.now_ms);
  h.now_ms += 5;
  ASSERT_TRUE(client.open("b", 1));
  ASSERT_TRUE(client.append("b", 1, 5));
  h.tables(shard).untrusted_touch(SlotIndex{1}) = 0;
  h.now_ms += 26;  // the end of the next tick
  EXPECT_EQ(h.core->contexts().at(0).idle_ms, 31u);
  EXPECT_EQ(h.core->contexts().at(1).idle_ms, 26u);
}

// The touch word of a slot's last context says nothing about the next one in it.
TEST(Recency, ATouchOfTheSlotsLastContextDoesNotMakeTheNextOneOlder) {
  CoreHarness h;
  const auto shard = h.add_shard();
  CoreClient client(h, shard);
  h.tables(shard).untrusted_touch(SlotIndex{0}) = touch_ticks(h.now_ms - 50'000);
  ASSERT_TRUE(client.open("a", 1));
  EXPECT_EQ(h.core->contexts().at(0).idle_ms, 0u);
}

}  // namespace
}  // namespace hotkv::test
