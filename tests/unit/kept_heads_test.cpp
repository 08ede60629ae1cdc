#include "daemon/core/kept_heads.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <random>

#include "tests/support/core_harness.hpp"

namespace hotkv::test {
namespace {

class KeptHeads : public ::testing::Test {
 protected:
  static HeadWord head(std::uint32_t generation) {
    return {Generation{generation}, Tip::at(ChunkIndex{generation * 2})};
  }
  std::map<std::uint32_t, std::uint64_t> by_slot(const core::KeptHeads& heads) const {
    std::map<std::uint32_t, std::uint64_t> seen;
    for (const auto& kept : heads.all()) seen.emplace(kept.slot.value(), kept.head.bits());
    return seen;
  }

  CoreHarness h;
  core::ShardTables tables = h.tables(h.add_shard());
  core::StoreGate gate;
  core::KeptHeads kept_heads{tables, gate};
};

TEST_F(KeptHeads, DropsWhatIsOverAndLetsGoOfItOnce) {
  for (std::uint32_t slot = 0; slot < 10; ++slot) kept_heads.keep(SlotIndex{slot}, head(slot + 1));
  std::vector<std::uint32_t> let_go;
  kept_heads.drop_if([](const auto& kept) { return kept.slot.value() % 2 == 0; },
                     [&](const auto& kept) { let_go.push_back(kept.slot.value()); });
  std::ranges::sort(let_go);
  EXPECT_EQ(let_go, (std::vector<std::uint32_t>{0, 2, 4, 6, 8}));
  EXPECT_EQ(kept_heads.count(), 5u);
  EXPECT_EQ(by_slot(kept_heads).at(3), head(4).bits());
}

TEST_F(KeptHeads, HasRoomForEveryPinWordAndTheEndsOfOneMessage) {
  const std::uint32_t pins = h.limits.clients_per_shard * kPinsPerPage;
  std::uint32_t count = 0;
  for (; kept_heads.has_room(); ++count) kept_heads.keep(SlotIndex{0}, head(count + 1));
  EXPECT_GE(count, pins + 1024);
  kept_heads.drop_if([](const auto& kept) { return kept.head.generation == Generation{7}; },
                     [](const auto&) {});
  EXPECT_TRUE(kept_heads.has_room());
  kept_heads.keep(SlotIndex{1}, head(1));
  EXPECT_FALSE(kept_heads.has_room());
}

TEST_F(KeptHeads, ARecordCountsOnlyWhenItIsWhole) {
  std::uint64_t stores = 0;
  gate.set_probe([&] {
    ++stores;
    core::KeptHeads rebuilt(tables, gate);
    rebuilt.rebuild();
    EXPECT_EQ(rebuilt.count(), 0u);
  });
  kept_heads.keep(SlotIndex{3}, head(9));
  gate.set_probe({});
  EXPECT_EQ(stores, 2u);
  core::KeptHeads rebuilt(tables, gate);
  rebuilt.rebuild();
  EXPECT_EQ(by_slot(rebuilt), by_slot(kept_heads));
}

TEST_F(KeptHeads, RebuiltItHoldsTheSameRecordsAndUsesTheGapsAgain) {
  std::mt19937 random(5);
  const auto below = [&](std::size_t n) { return static_cast<std::uint32_t>(random() % n); };
  for (std::uint32_t round = 0; round < 300; ++round) {
    if (!by_slot(kept_heads).contains(round)) kept_heads.keep(SlotIndex{round}, head(round + 1));
    if (below(2) == 0) {
      const std::uint32_t over = below(round + 1);
      kept_heads.drop_if([&](const auto& kept) { return kept.slot.value() == over; },
                         [](const auto&) {});
    }
    core::KeptHeads rebuilt(tables, gate);
    rebuilt.rebuild();
    ASSERT_EQ(by_slot(rebuilt), by_slot(kept_heads));
  }
  core::KeptHeads rebuilt(tables, gate);
  rebuilt.rebuild();
  const std::uint32_t before = rebuilt.count();
  std::uint32_t more = 0;
  for (; rebuilt.has_room(); ++more) rebuilt.keep(SlotIndex{0}, head(1));
  EXPECT_EQ(before + more, tables.capacities().kept_head_count);
}

}  // namespace
}  // namespace hotkv::test
