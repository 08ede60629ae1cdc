#include "daemon/core/session_table.hpp"

#include <gtest/gtest.h>

#include <map>
#include <random>
#include <set>
#include <string>

#include "shared/session_hash.hpp"
#include "tests/support/core_harness.hpp"

namespace hotkv::test {
namespace {

class SessionTable : public ::testing::Test {
 protected:
  static core::Limits limits() {
    auto limits = CoreHarness::small_limits();
    limits.session_cap = 200;  // 266 slots, 1024 index entries
    return limits;
  }

  std::uint32_t mask() const { return tables.capacities().index_count - 1; }
  std::uint32_t home(const SessionId& session) const {
    return static_cast<std::uint32_t>(session_hash(session, tables.header().hash_key)) & mask();
  }
  // `count` ids that all begin their probe at `place`.
  std::vector<SessionId> colliding(std::uint32_t place, std::size_t count) {
    std::vector<SessionId> ids;
    while (ids.size() < count) {
      const auto candidate = id("flood " + std::to_string(next_candidate++));
      if (home(candidate) == place) ids.push_back(candidate);
    }
    return ids;
  }
  // A live slot of this session, not in the index.
  void fill_slot(SlotIndex slot, const SessionId& session) {
    SlotRecord& record = tables.slot(slot);
    record.id_bytes = session.size_bytes();
    for (std::size_t i = 0; i < SessionId::kWords; ++i) record.id[i] = session.words()[i];
    record.state = static_cast<std::uint32_t>(SlotState::live);
    record.head = HeadWord{Generation{1}, Tip::empty()}.bits();
  }
  SlotIndex add(const SessionId& session) {
    const SlotIndex slot = table.take_free().value();
    fill_slot(slot, session);
    table.insert(session, slot);
    return slot;
  }
  void remove(const SessionId& session, SlotIndex slot) {
    table.remove(session, slot);
    tables.slot(slot).head = HeadWord{Generation{2}, Tip::free()}.bits();
    tables.slot(slot).state = static_cast<std::uint32_t>(SlotState::free);
    table.give_back(slot);
  }

  CoreHarness h{limits()};
  core::ShardTables tables = h.tables(h.add_shard());
  core::StoreGate gate;
  core::SessionTable table{tables, gate};
  std::uint64_t next_candidate = 0;
};

TEST_F(SessionTable, FindsWhatWasInsertedAndNothingElse) {
  const SlotIndex a = add(id("a"));
  const SlotIndex b = add(id(std::string("a\0b", 3)));
  EXPECT_EQ(table.find(id("a")), a);
  EXPECT_EQ(table.find(id(std::string("a\0b", 3))), b);
  EXPECT_EQ(table.find(id(std::string("a\0", 2))), std::nullopt);
  EXPECT_EQ(table.live_count(), 2u);
}

// FR-095: a hash only says where to look.
TEST_F(SessionTable, AnEntryWithTheSoughtTagIsStillComparedByItsWholeId) {
  const SlotIndex a = add(id("a"));
  const SessionId sought = id("b");
  const std::uint64_t hash = session_hash(sought, tables.header().hash_key);
  tables.index()[hash & mask()] = index_entry(hash, a);
  EXPECT_EQ(table.find(sought), std::nullopt);
}

TEST_F(SessionTable, AFloodOfCollidingIdsIsRefusedWithinTheBoundedProbe) {
  const auto flood = colliding(1000, kIndexProbesMax + 1);  // its run wraps around the end
  for (std::size_t i = 0; i < kIndexProbesMax; ++i) {
    ASSERT_TRUE(table.has_index_room(flood[i]));
    add(flood[i]);
  }
  EXPECT_FALSE(table.has_index_room(flood.back()));
  EXPECT_EQ(table.find(flood.back()), std::nullopt);
  for (std::size_t i = 0; i < kIndexProbesMax; ++i) EXPECT_TRUE(table.find(flood[i]).has_value());
}

TEST_F(SessionTable, AFloodHurtsNobodyElse) {
  const SessionId before = colliding(300, 1).front();
  const SlotIndex before_slot = add(before);
  for (const auto& flooding : colliding(250, kIndexProbesMax - 1)) add(flooding);
  EXPECT_EQ(table.find(before), before_slot);
  // An id whose home lies within the flooded run goes behind it, and others where they always go.
  for (const std::uint32_t place : {260u, 370u, 378u, 379u, 900u}) {
    const SessionId other = colliding(place, 1).front();
    ASSERT_TRUE(table.has_index_room(other)) << place;
    const SlotIndex slot = add(other);
    EXPECT_EQ(table.find(other), slot) << place;
  }
}

TEST_F(SessionTable, ARemovedFloodLeavesRoomForAllOfItAgain) {
  const auto flood = colliding(7, kIndexProbesMax + 1);
  std::map<std::size_t, SlotIndex> slots;
  for (std::size_t i = 0; i < kIndexProbesMax; ++i) slots.emplace(i, add(flood[i]));
  remove(flood[0], slots.at(0));
  EXPECT_TRUE(table.has_index_room(flood.back()));
  const SlotIndex last = add(flood.back());
  EXPECT_EQ(table.find(flood.back()), last);
  EXPECT_FALSE(table.has_index_room(flood[0]));
}

// Ids from a few homes at the end of the index, so that runs are long and wrap around.
TEST_F(SessionTable, RemovalKeepsEveryOtherIdFindableAtEveryStore) {
  std::vector<SessionId> pool;
  for (const std::uint32_t place : {1020u, 1021u, 1023u, 0u, 1u, 5u}) {
    for (const auto& each : colliding(place, 12)) pool.push_back(each);
  }
  std::mt19937 random(1);
  const auto below = [&](std::size_t n) { return static_cast<std::uint32_t>(random() % n); };
  std::map<SessionId, SlotIndex> model;
  for (int step = 0; step < 4000; ++step) {
    const SessionId& session = pool[below(pool.size())];
    if (const auto found = model.find(session); found != model.end()) {
      const SlotIndex slot = found->second;
      model.erase(found);
      // A client may look between any two stores.
      gate.set_probe([&] {
        for (const auto& [other, at] : model) ASSERT_EQ(table.find(other), at);
      });
      remove(session, slot);
      gate.set_probe({});
    } else {
      model.emplace(session, add(session));
    }
    ASSERT_EQ(table.live_count(), model.size());
    for (const auto& each : pool) {
      const auto found = model.find(each);
      const auto expected =
          found == model.end() ? std::nullopt : std::optional<SlotIndex>(found->second);
      ASSERT_EQ(table.find(each), expected) << "step " << step;
    }
  }
}

TEST_F(SessionTable, GivesTheLowestNeverUsedSlotAndUsesReturnedOnesAgain) {
  EXPECT_EQ(table.take_free(), SlotIndex{0});
  EXPECT_EQ(table.take_free(), SlotIndex{1});
  table.give_back(SlotIndex{0});
  EXPECT_EQ(table.take_free(), SlotIndex{0});
  EXPECT_EQ(table.take_free(), SlotIndex{2});
}

TEST_F(SessionTable, GivesEverySlotOnceAndThenNone) {
  std::set<SlotIndex> given;
  while (const auto slot = table.take_free()) EXPECT_TRUE(given.insert(*slot).second);
  EXPECT_EQ(given.size(), tables.capacities().slot_count);
}

TEST_F(SessionTable, RebuildFindsTheSameSessionsWhateverTheIndexSays) {
  std::map<std::string, SlotIndex> slots;
  for (int i = 0; i < 50; ++i) {
    const std::string name = "s" + std::to_string(i);
    slots.emplace(name, add(id(name)));
  }
  for (int i = 0; i < 50; i += 3) {
    const std::string name = "s" + std::to_string(i);
    remove(id(name), slots.at(name));
    slots.erase(name);
  }
  std::mt19937_64 random(2);
  for (auto& entry : tables.index()) entry = random();

  core::SessionTable rebuilt(tables, gate);
  EXPECT_TRUE(rebuilt.rebuild().empty());
  EXPECT_EQ(rebuilt.live_count(), slots.size());
  for (const auto& [name, slot] : slots) EXPECT_EQ(rebuilt.find(id(name)), slot);
  std::uint32_t indexed = 0;
  for (const auto& entry : tables.index()) indexed += entry.load() != 0 ? 1 : 0;
  EXPECT_EQ(indexed, slots.size());
}

TEST_F(SessionTable, RebuildGivesFreeSlotsLowestFirstAndNeverWornOutOnes) {
  for (int i = 0; i < 6; ++i) add(id("s" + std::to_string(i)));
  for (const std::uint32_t slot : {1u, 2u, 4u}) {
    remove(id("s" + std::to_string(slot)), SlotIndex{slot});
  }
  tables.slot(SlotIndex{2}).state = static_cast<std::uint32_t>(SlotState::worn_out);

  core::SessionTable rebuilt(tables, gate);
  ASSERT_TRUE(rebuilt.rebuild().empty());
  EXPECT_EQ(rebuilt.take_free(), SlotIndex{1});
  EXPECT_EQ(rebuilt.take_free(), SlotIndex{4});
  EXPECT_EQ(rebuilt.take_free(), SlotIndex{6});
}

TEST_F(SessionTable, RebuildNamesLiveSlotsThatTheIndexHasNoRoomFor) {
  const auto flood = colliding(500, kIndexProbesMax + 2);
  for (std::uint32_t i = 0; i < flood.size(); ++i) fill_slot(SlotIndex{i}, flood[i]);
  core::SessionTable rebuilt(tables, gate);
  EXPECT_EQ(rebuilt.rebuild(), (std::vector{SlotIndex{1}, SlotIndex{0}}));
  EXPECT_EQ(rebuilt.live_count(), kIndexProbesMax);
}

}  // namespace
}  // namespace hotkv::test
