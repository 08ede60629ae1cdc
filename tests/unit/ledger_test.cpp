#include "daemon/core/ledger.hpp"

#include <gtest/gtest.h>

#include <map>
#include <random>
#include <string>

#include "tests/support/core_harness.hpp"

namespace hotkv::test {
namespace {

struct Killed {};

class Ledger : public ::testing::Test {
 protected:
  static core::Limits limits() {
    auto limits = CoreHarness::small_limits();
    limits.session_cap = 4;  // 21 slots
    limits.tombstones = 8;   // 29 records
    return limits;
  }
  std::uint32_t capacity() const { return tables.capacities().ledger_count; }
  static SessionId name(std::uint32_t i) { return id("s" + std::to_string(i)); }
  void end(const SessionId& session, std::uint64_t when_ms) {
    (void)ledger.remember(session, Epoch{1}, when_ms);
    ledger.bury(session, MissReason::released, TokenCount{5}, when_ms);
  }

  CoreHarness h{limits()};
  core::ShardTables tables = h.tables(h.add_shard());
  core::StoreGate gate;
  core::Ledger ledger{tables, gate};
};

TEST_F(Ledger, TheHighestEpochOnlyRises) {
  (void)ledger.remember(id("a"), Epoch{5}, 1);
  (void)ledger.remember(id("a"), Epoch{3}, 2);
  EXPECT_EQ(ledger.find(id("a"))->epoch, Epoch{5});
  (void)ledger.remember(id("a"), Epoch{~std::uint64_t{0}}, 3);
  EXPECT_EQ(ledger.find(id("a"))->epoch, Epoch{~std::uint64_t{0}});
  EXPECT_EQ(ledger.count(), 1u);
}

TEST_F(Ledger, KeepsTheFateUntilTheSessionLivesAgain) {
  (void)ledger.remember(id("a"), Epoch{1}, 1);
  ledger.revive(id("a"));
  EXPECT_EQ(ledger.find(id("a"))->fate, std::nullopt);
  EXPECT_EQ(ledger.ended_count(), 0u);
  ledger.bury(id("a"), MissReason::evicted_ttl, TokenCount{120}, 77);
  const auto entry = ledger.find(id("a"));
  EXPECT_EQ(entry->fate, MissReason::evicted_ttl);
  EXPECT_EQ(entry->last_length, TokenCount{120});
  EXPECT_EQ(entry->ended_ms, 77u);
  EXPECT_EQ(ledger.ended_count(), 1u);
  ledger.revive(id("a"));
  EXPECT_EQ(ledger.find(id("a"))->fate, std::nullopt);
}

TEST_F(Ledger, FullItForgetsTheLongestEndedFirstAndSaysSinceWhen) {
  for (std::uint32_t i = 0; i < capacity(); ++i) end(name(i), 1000 + (i * 7) % capacity());
  // (i * 7) mod 29 is 0 for 0, 1 for 25, 2 for 21.
  EXPECT_EQ(ledger.remember(id("x"), Epoch{1}, 5000), 1000u);
  EXPECT_EQ(ledger.find(name(0)), std::nullopt);
  EXPECT_EQ(ledger.remember(id("y"), Epoch{1}, 5000), 1001u);
  EXPECT_EQ(ledger.find(name(25)), std::nullopt);
  EXPECT_EQ(ledger.remember(id("z"), Epoch{1}, 5000), 1002u);
  EXPECT_EQ(ledger.find(name(21)), std::nullopt);
  EXPECT_EQ(ledger.count(), capacity());
}

TEST_F(Ledger, NeverForgetsALiveSession) {
  for (std::uint32_t i = 0; i < tables.capacities().slot_count; ++i) {
    (void)ledger.remember(name(i), Epoch{i}, 0);  // remembered longest ago of all
    ledger.revive(name(i));
  }
  for (std::uint32_t i = 0; i < 200; ++i) end(id("t" + std::to_string(i)), 10 + i);
  for (std::uint32_t i = 0; i < tables.capacities().slot_count; ++i) {
    ASSERT_TRUE(ledger.find(name(i)).has_value()) << i;
    EXPECT_EQ(ledger.find(name(i))->epoch, Epoch{i});
  }
  EXPECT_EQ(ledger.ended_count(), capacity() - tables.capacities().slot_count);
}

TEST_F(Ledger, ARememberedSessionIsNotForgottenForItself) {
  for (std::uint32_t i = 0; i < capacity(); ++i) end(name(i), i);
  EXPECT_EQ(ledger.remember(name(0), Epoch{2}, 900), std::nullopt);
  EXPECT_EQ(ledger.find(name(0))->epoch, Epoch{2});
  EXPECT_EQ(ledger.count(), capacity());
}

TEST_F(Ledger, RebuiltItIsEqualAndForgetsInTheSameOrder) {
  std::mt19937 random(3);
  const auto below = [&](std::size_t n) { return static_cast<std::uint32_t>(random() % n); };
  std::map<std::string, bool> lives;
  for (int step = 0; step < 3000; ++step) {
    const std::string session = "s" + std::to_string(below(40));
    const std::uint64_t now = static_cast<std::uint64_t>(step) * 3;
    bool& live = lives[session];
    std::uint32_t live_count = 0;
    for (const auto& [each, is_live] : lives) live_count += is_live ? 1 : 0;
    if (live) {
      ledger.bury(id(session), MissReason::evicted_lru, TokenCount{below(100)}, now);
      live = false;
    } else if (live_count < tables.capacities().slot_count) {
      (void)ledger.remember(id(session), Epoch{below(9)}, now);
      ledger.revive(id(session));
      live = true;
    }
    if (step % 50 != 0) continue;

    core::Ledger rebuilt(tables, gate);
    rebuilt.rebuild();
    for (const auto& [each, is_live] : lives) {
      if (is_live) rebuilt.revive(id(each));
    }
    ASSERT_EQ(rebuilt.count(), ledger.count());
    ASSERT_EQ(rebuilt.ended_count(), ledger.ended_count());
    for (const auto& [each, is_live] : lives) {
      const auto a = ledger.find(id(each));
      const auto b = rebuilt.find(id(each));
      ASSERT_EQ(a.has_value(), b.has_value()) << each;
      if (!a) continue;
      ASSERT_EQ(a->epoch, b->epoch);
      ASSERT_EQ(a->fate, b->fate);
      if (!a->fate) continue;
      ASSERT_EQ(a->last_length, b->last_length);
      ASSERT_EQ(a->ended_ms, b->ended_ms);
    }
  }
  core::Ledger rebuilt(tables, gate);
  rebuilt.rebuild();
  for (const auto& [each, is_live] : lives) {
    if (is_live) rebuilt.revive(id(each));
  }
  // The next to be forgotten is the same one in both (each forgets in its own private state).
  const auto forgotten = rebuilt.remember(id("new"), Epoch{1}, 99'999);
  ASSERT_TRUE(forgotten.has_value());
  EXPECT_EQ(ledger.remember(id("new"), Epoch{1}, 99'999), forgotten);
}

TEST_F(Ledger, KilledBeforeAnyStoreARecordIsWholeOrNotThere) {
  for (std::uint32_t i = 0; i < capacity(); ++i) end(name(i), 100 + i);
  std::vector<std::byte> before(h.files.begin()->second->tables.bytes().begin(),
                                h.files.begin()->second->tables.bytes().end());
  const SessionId fresh = id("a session with an id of more than one word");
  for (std::uint64_t k = 0;; ++k) {
    std::ranges::copy(before, h.files.begin()->second->tables.bytes().begin());
    core::Ledger killed(tables, gate);
    killed.rebuild();
    std::uint64_t left = k;
    gate.set_probe([&] {
      if (left-- == 0) throw Killed{};
    });
    bool was_killed = false;
    try {
      (void)killed.remember(fresh, Epoch{9}, 500);
      killed.bury(fresh, MissReason::evicted_ttl, TokenCount{33}, 600);
    } catch (const Killed&) {
      was_killed = true;
    }
    gate.set_probe({});
    core::Ledger rebuilt(tables, gate);
    rebuilt.rebuild();
    for (std::uint32_t i = 1; i < capacity(); ++i) {
      ASSERT_TRUE(rebuilt.find(name(i)).has_value()) << "killed before store " << k;
    }
    const auto entry = rebuilt.find(fresh);
    if (entry) {
      EXPECT_EQ(entry->epoch, Epoch{9});
      if (entry->fate) {
        EXPECT_EQ(entry->fate, MissReason::evicted_ttl);
        EXPECT_EQ(entry->last_length, TokenCount{33});
        EXPECT_EQ(entry->ended_ms, 600u);
      }
    }
    if (was_killed) continue;
    EXPECT_TRUE(entry.has_value());
    EXPECT_GT(k, 20u);
    break;
  }
}

TEST_F(Ledger, RebuildDropsTheSecondRecordOfOneSession) {
  end(id("a"), 1);
  end(id("b"), 2);
  LedgerRecord& second = tables.ledger()[1];
  second.id[0] = id("a").words()[0];
  core::Ledger rebuilt(tables, gate);
  rebuilt.rebuild();
  EXPECT_EQ(rebuilt.count(), 1u);
  EXPECT_EQ(second.state.load(), 0u);
  // Its record is used again.
  (void)rebuilt.remember(id("c"), Epoch{4}, 3);
  EXPECT_EQ(second.epoch.load(), 4u);
}

// The core counts what is forgotten earlier than tombstone_ttl promises.
TEST(LedgerInTheCore, ForgettingEarlierThanTombstoneTtlIsCounted) {
  auto limits = CoreHarness::small_limits();
  limits.session_cap = 4;
  limits.tombstones = 1;  // 22 records
  limits.tombstone_ttl_ms = 1000;
  CoreHarness h(limits);
  const auto shard = h.add_shard();
  CoreClient client(h, shard);
  const auto forgotten_early = [&] {
    return h.core->status().shards.at(0).counters.forgotten_early;
  };
  for (int i = 0; i < 22; ++i) {
    const std::string name = "s" + std::to_string(i);
    ASSERT_TRUE(client.open(name, 1));
    ASSERT_TRUE(client.release(name, 1));
  }
  EXPECT_EQ(forgotten_early(), 0u);
  h.now_ms += 1000;
  ASSERT_TRUE(client.open("old enough", 1));
  EXPECT_EQ(forgotten_early(), 0u);
  ASSERT_TRUE(client.release("old enough", 1));
  h.now_ms -= 1;
  ASSERT_TRUE(client.open("too early", 1));
  EXPECT_EQ(forgotten_early(), 1u);
  EXPECT_TRUE(client.resolve("s0", 1, 0).error().is(MissReason::unknown_session));
  EXPECT_EQ(h.core->verify(), std::nullopt);
}

}  // namespace
}  // namespace hotkv::test
