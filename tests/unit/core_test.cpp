#include "daemon/core/core.hpp"

#include <gtest/gtest.h>

#include <cstring>
#include <optional>
#include <string>
#include <tuple>
#include <vector>

#include "shared/session_hash.hpp"
#include "tests/support/core_harness.hpp"

namespace hotkv::test {
namespace {

constexpr std::uint64_t kChunk = 4096;  // one chunk of 16 tokens, one extent

class Core : public ::testing::Test {
 protected:
  explicit Core(core::Limits limits = CoreHarness::small_limits()) : h(limits) {}
  void TearDown() override { EXPECT_EQ(h.core->verify(), std::nullopt); }

  core::Account account() const { return h.core->status().account; }
  core::Counters counters() const { return h.core->status().shards.at(0).counters; }
  std::uint64_t pinned_words(const CoreClient& client) const {
    std::uint64_t pins = 0;
    for (const auto& word : h.tables(shard).untrusted_page(client.client.page).pins) {
      pins += word.load() != 0 ? 1 : 0;
    }
    return pins;
  }
  void expect_content(CoreClient& client, const std::string& session, std::uint32_t length,
                      const std::vector<std::uint32_t>& versions = {}) {
    auto view = client.resolve(session, 1, length);
    ASSERT_TRUE(view.has_value()) << view.error().message();
    EXPECT_EQ(client.wrong_bytes(session, 1, *view, versions), 0u) << session;
    client.unpin(*view);
  }
  // Nothing of the shard but the counter of refusals differs.
  struct Picture {
    core::Account account;
    std::vector<std::tuple<std::string, std::uint64_t, std::uint32_t, std::uint32_t, std::uint64_t>>
        contexts;
    friend bool operator==(const Picture& a, const Picture& b) {
      return a.account.provisioned == b.account.provisioned && a.account.used == b.account.used &&
             a.account.free == b.account.free && a.account.kept == b.account.kept &&
             a.contexts == b.contexts;
    }
  };
  Picture picture() const {
    Picture now{account(), {}};
    for (const auto& c : h.core->contexts()) {
      now.contexts.emplace_back(c.session.bytes(), c.epoch.value(), c.length.value(),
                                c.generation.value(), c.idle_ms);
    }
    return now;
  }

  CoreHarness h;
  core::ShardId shard = h.add_shard();
  CoreClient worker{h, shard};
};

// FR-001: resolving does not add up, and what nobody holds any more is not pinned.
TEST_F(Core, ThousandsOfResolvesLeaveNoClaimBehind) {
  CoreClient reader(h, shard, Access::read);
  for (int i = 0; i < 8; ++i) {
    const std::string name = "s" + std::to_string(i);
    ASSERT_TRUE(worker.open(name, 1));
    ASSERT_TRUE(worker.append(name, 1, 4 * 16));
    for (int round = 0; round < 1000; ++round) {
      auto view = reader.resolve(name, 1, 4 * 16);
      ASSERT_TRUE(view.has_value());
      reader.unpin(*view);
      ASSERT_FALSE(reader.resolve(name, 1, 3).has_value());  // a miss claims nothing
    }
  }
  EXPECT_EQ(pinned_words(reader), 0u);
  ASSERT_TRUE(worker.open("big", 1));
  EXPECT_TRUE(worker.append("big", 1, 64 * 16));
}

// FR-001: pins that their client never let go of are gone with the client.
TEST_F(Core, PinsOfAClientThatIsGoneHoldNothing) {
  CoreClient reader(h, shard, Access::read);
  for (int i = 0; i < 8; ++i) {
    const std::string name = "s" + std::to_string(i);
    ASSERT_TRUE(worker.open(name, 1));
    ASSERT_TRUE(worker.append(name, 1, 8 * 16));
    (void)reader.resolve(name, 1, 8 * 16).value();
  }
  ASSERT_TRUE(worker.open("big", 1));
  EXPECT_TRUE(worker.append("big", 1, 16).error().is(ErrorCode::budget_exceeded));
  reader.hang_up();  // it lives on, and so do its pins
  EXPECT_TRUE(worker.append("big", 1, 16).error().is(ErrorCode::budget_exceeded));
  h.liveness.gone.insert(reader.client);
  h.now_ms += 1000;  // asking after clients has its price, and is not repeated at once
  EXPECT_TRUE(worker.append("big", 1, 64 * 16));
}

// FR-002: a truncate and a fresh claim give the chunks behind the new length back.
TEST_F(Core, ARefreshedClaimHoldsOnlyTheChunksOfItsLength) {
  for (const std::uint32_t to : {3u * 16, 3u * 16 - 5}) {
    CoreClient reader(h, shard, Access::read);
    ASSERT_TRUE(worker.open("s", 1));
    ASSERT_TRUE(worker.append("s", 1, 10 * 16));
    const auto view = reader.resolve("s", 1, 10 * 16).value();
    ASSERT_TRUE(worker.truncate("s", 1, to));
    EXPECT_EQ(account().kept, 7 * kChunk);
    reader.unpin(view);
    const auto refreshed = reader.resolve("s", 1, to).value();
    h.core->end_message(shard);
    EXPECT_EQ(account().kept, 0u);
    EXPECT_EQ(account().used, 3 * kChunk);
    EXPECT_EQ(refreshed.chunks.size(), 3u);
    ASSERT_TRUE(worker.open("other", 1));
    EXPECT_TRUE(worker.append("other", 1, 61 * 16));
    EXPECT_EQ(reader.wrong_bytes("s", 1, refreshed), 0u);
    reader.die();
    ASSERT_TRUE(worker.release("other", 1));
    ASSERT_TRUE(worker.release("s", 1));
  }
}

// FR-011: what a teardown stores depends on what its client held, not on what else there is.
TEST(CoreTeardown, StoresNoMoreBesideAThousandSessionsThanBesideTen) {
  const auto stores_beside = [](std::uint32_t sessions) {
    auto limits = CoreHarness::small_limits();
    limits.session_cap = 2000;
    CoreHarness h(limits);
    const auto shard = h.add_shard();
    CoreClient holder(h, shard);
    for (std::uint32_t i = 0; i < sessions; ++i) {
      EXPECT_TRUE(holder.open("s" + std::to_string(i), 1));
    }
    CoreClient dying(h, shard);
    EXPECT_TRUE(dying.open("mine", 1));
    EXPECT_TRUE(dying.append("mine", 1, 40));
    (void)dying.resolve("mine", 1, 40).value();
    std::uint64_t stores = 0;
    h.core->set_store_probe([&] { ++stores; });
    dying.die();
    return stores;
  };
  const auto few = stores_beside(10);
  EXPECT_EQ(stores_beside(1000), few);
  EXPECT_LE(few, 4u);
}

// FR-013: the part of a grant that was not used is given back once.
TEST_F(Core, TheUnusedTailOfAGrantIsFreedOnce) {
  for (const bool is_killed : {true, false}) {
    CoreClient writer(h, shard);
    ASSERT_TRUE(writer.open("s", 1));
    const auto granted = writer.grant("s", 1, 8 * 16).value();
    const auto pin = writer.pin_for_writing(granted).value();
    writer.write("s", 1, pin, 0, 5 * 16);
    ASSERT_TRUE(writer.publish(pin, 0, 5 * 16));
    writer.unpin(pin);
    if (is_killed) {
      writer.die();
    } else {
      ASSERT_TRUE(writer.truncate("s", 1, 5 * 16));  // nothing to do
      ASSERT_TRUE(writer.truncate("s", 1, 5 * 16 - 1));
      writer.die();
    }
    ASSERT_TRUE(worker.release("s", 1));
    EXPECT_EQ(account().used, 0u);
    CoreClient a(h, shard);
    CoreClient b(h, shard);
    for (int i = 0; i < 8; ++i) {
      CoreClient& of = i % 2 == 0 ? a : b;
      const std::string name = "fill" + std::to_string(i);
      ASSERT_TRUE(of.open(name, 1));
      ASSERT_TRUE(of.append(name, 1, 8 * 16));
    }
    EXPECT_EQ(account().used, 64 * kChunk);
    EXPECT_EQ(h.core->verify(), std::nullopt);
    for (int i = 0; i < 8; ++i) {
      const std::string name = "fill" + std::to_string(i);
      expect_content(a, name, 8 * 16);
      ASSERT_TRUE(worker.release(name, 1));
    }
    a.die();
    b.die();
  }
}

// FR-022: the looks of people and scrapers are no use of a context.
TEST_F(Core, LookingChangesNeitherRecencyNorCounters) {
  for (int i = 0; i < 8; ++i) ASSERT_TRUE(worker.open("s" + std::to_string(i), 1));
  (void)worker.resolve("never", 1, 1);
  ASSERT_TRUE(worker.release("s7", 1));
  const auto before = counters();
  std::uint64_t stores = 0;
  h.core->set_store_probe([&] { ++stores; });
  for (std::uint64_t waited = 0; waited < h.limits.ttl_ms; waited += 1000) {
    (void)h.core->status();
    (void)h.core->contexts();
    (void)h.core->why(id("s1"));
    (void)h.core->why(id("s7"));
    (void)h.core->why(id("never"));
    EXPECT_EQ(h.core->verify(), std::nullopt);
    h.now_ms += 1000;
  }
  EXPECT_EQ(stores, 0u);
  h.core->set_store_probe({});
  for (const auto& context : h.core->contexts()) EXPECT_EQ(context.idle_ms, h.limits.ttl_ms);
  const auto after = counters();
  EXPECT_EQ(std::memcmp(&before, &after, sizeof before), 0);
  h.core->tick();
  EXPECT_TRUE(h.core->contexts().empty());
  EXPECT_EQ(counters().ended[static_cast<std::size_t>(MissReason::evicted_ttl)], 7u);
}

TEST_F(Core, WhyKnowsTheLivingAndTheEndedInEveryShard) {
  CoreClient other(h, h.add_shard(small_recipe({0, 1}, "other model")));
  ASSERT_TRUE(worker.open("a", 3));
  ASSERT_TRUE(worker.append("a", 3, 20));
  ASSERT_TRUE(other.open("a", 9));
  ASSERT_TRUE(other.release("a", 9));
  const auto found = h.core->why(id("a"));
  ASSERT_EQ(found.size(), 2u);
  ASSERT_TRUE(found[0].context.has_value());
  EXPECT_EQ(found[0].context->length, TokenCount{20});
  EXPECT_EQ(found[0].context->holder_pid, 100u);
  ASSERT_TRUE(found[1].last.has_value());
  EXPECT_EQ(found[1].last->reason, MissReason::released);
  EXPECT_EQ(found[1].last->known_epoch, Epoch{9});
  EXPECT_TRUE(h.core->why(id("b")).empty());
}

// FR-031: an open or append that fails leaves nothing behind.
TEST_F(Core, AFailedOpenLeavesNoGhostAndARetryWorks) {
  CoreClient reader(h, shard, Access::read);
  std::vector<CoreView> pins;
  for (std::uint32_t i = 0; i < h.limits.session_cap; ++i) {
    const std::string name = "s" + std::to_string(i);
    ASSERT_TRUE(worker.open(name, 1));
    ASSERT_TRUE(worker.append(name, 1, 4 * 16));
    pins.push_back(reader.resolve(name, 1, 4 * 16).value());
  }
  const auto before = picture();
  const auto refused = worker.open("new", 1);
  ASSERT_FALSE(refused.has_value());
  EXPECT_TRUE(refused.error().is(ErrorCode::too_many_sessions));
  EXPECT_NE(refused.error().message().find("all 16 contexts"), std::string::npos);
  EXPECT_EQ(counters().evictions_in_vain, 1u);
  EXPECT_TRUE(picture() == before);
  EXPECT_TRUE(h.core->why(id("new")).empty());
  EXPECT_TRUE(reader.resolve("new", 1, 0).error().is(MissReason::unknown_session));
  reader.unpin(pins.back());
  ASSERT_TRUE(worker.open("new", 1));
  EXPECT_TRUE(worker.append("new", 1, 4 * 16));
  EXPECT_TRUE(worker.resolve("s15", 1, 64).error().is(MissReason::evicted_lru));
}

// FR-031: and one that asks for more than there can be changes nothing.
TEST_F(Core, AFailedAppendChangesNothing) {
  ASSERT_TRUE(worker.open("a", 1));
  ASSERT_TRUE(worker.append("a", 1, 30));
  const auto before = picture();
  EXPECT_TRUE(worker.grant("a", 1, 64 * 16 + 1).error().is(ErrorCode::budget_exceeded));
  EXPECT_TRUE(picture() == before);
  ASSERT_TRUE(worker.grant("a", 1, 64 * 16));
}

// FR-034: ids without end take a bounded number of slots, records and chunks.
TEST_F(Core, IdsWithoutEndStayWithinTheTables) {
  std::uint64_t stale = 0;
  for (std::uint32_t i = 0; i < 50'000; ++i) {
    ++h.now_ms;
    std::string name(SessionId::kBytesMax, 'x');
    name.replace(0, 8, std::to_string(10'000'000 + i));
    ASSERT_TRUE(worker.open(name, 1));
    if (i % 50 == 0) {
      ASSERT_TRUE(worker.append(name, 1, 1));
    }
    stale += worker.open(name, 0).has_value() ? 1 : 0;
  }
  const auto info = h.core->status().shards.at(0);
  EXPECT_EQ(stale, 0u);
  EXPECT_EQ(info.contexts, h.limits.session_cap);
  EXPECT_LE(info.tombstones + info.contexts, h.tables(shard).capacities().ledger_count);
  EXPECT_GE(info.tombstones, h.limits.tombstones);
  EXPECT_EQ(info.counters.ended[static_cast<std::size_t>(MissReason::evicted_lru)],
            50'000 - h.limits.session_cap);
  EXPECT_GT(info.counters.forgotten_early, 0u);
}

// FR-035: each way of ending a context and each pair of them, in both orders, gives back once.
TEST_F(Core, EveryPairOfEndingsGivesBackExactlyOnce) {
  const auto apply = [&](int ending) {
    switch (ending) {
      case 0: (void)worker.release("a", 1); break;
      case 1: (void)worker.open("a", 2); break;
      case 2: (void)worker.truncate("a", 1, 0); break;
      case 3: (void)worker.close("a", 1); break;
      case 4:
        h.now_ms += h.limits.ttl_ms;
        h.core->tick();
        break;
      default:
        (void)worker.open("big", 1);
        (void)worker.append("big", 1, 64 * 16);
        break;
    }
    const auto now = account();
    EXPECT_EQ(now.used + now.free + now.kept + now.in_transit, now.provisioned);
    EXPECT_LE(now.used, h.limits.max_bytes);
    EXPECT_EQ(h.core->verify(), std::nullopt);
  };
  for (int first = 0; first < 6; ++first) {
    for (int second = 0; second < 6; ++second) {
      SCOPED_TRACE(std::to_string(first) + " then " + std::to_string(second));
      h.files.clear();
      h.core = std::make_unique<core::Core>(
          h.limits, [this] { return h.now_ms; }, h.liveness);
      shard = h.add_shard();
      worker.client = h.attach(shard);
      ASSERT_TRUE(worker.open("a", 1));
      ASSERT_TRUE(worker.append("a", 1, 100));
      ASSERT_TRUE(worker.grant("a", 1, 200));
      apply(first);
      apply(second);
      for (const auto& context : h.core->contexts()) {
        ASSERT_TRUE(worker.release(context.session.bytes(), context.epoch.value()));
      }
      EXPECT_EQ(account().used, 0u);
      EXPECT_EQ(account().free, account().provisioned);
    }
  }
}

// Ids that collide by brute force: refused with a reason, and nobody is evicted for them.
TEST_F(Core, AFloodOfCollidingIdsIsRefusedAndNobodyElseNoticesIt) {
  auto limits = CoreHarness::small_limits();
  limits.session_cap = 400;
  CoreHarness wide(limits);
  const auto flooded = wide.add_shard();
  CoreClient client(wide, flooded);
  ASSERT_TRUE(client.open("innocent", 1));
  const auto tables = wide.tables(flooded);
  const std::uint64_t mask = tables.capacities().index_count - 1;
  std::uint32_t accepted = 0;
  std::optional<Refusal> refusal;
  for (std::uint64_t i = 0; !refusal; ++i) {
    const std::string name = "flood " + std::to_string(i);
    if ((session_hash(id(name), tables.header().hash_key) & mask) != 77) continue;
    if (auto opened = client.open(name, 1)) {
      ++accepted;
    } else {
      refusal = opened.error();
    }
  }
  EXPECT_TRUE(refusal->is(ErrorCode::too_many_sessions));
  EXPECT_NE(refusal->message().find("collides"), std::string::npos);
  EXPECT_LE(accepted, kIndexProbesMax);
  EXPECT_GT(accepted, kIndexProbesMax - 4);
  // Ids that begin their probe in the flooded run may be refused too; all others are not.
  std::uint32_t others = 0;
  for (int i = 0; i < 100; ++i) {
    const std::string name = "other " + std::to_string(i);
    const auto home = session_hash(id(name), tables.header().hash_key) & mask;
    if (home >= 77 && home < 77 + 2 * kIndexProbesMax) continue;
    ASSERT_TRUE(client.open(name, 1));
    ++others;
  }
  EXPECT_GT(others, 50u);
  EXPECT_TRUE(client.resolve("innocent", 1, 0).has_value());
  EXPECT_EQ(wide.core->status().shards.at(0).contexts, accepted + others + 1);
  EXPECT_EQ(wide.core->verify(), std::nullopt);
}

// Evicting for the session cap takes the least recently used one that is not pinned.
TEST_F(Core, TheSessionCapPassesOverPinnedContexts) {
  CoreClient reader(h, shard, Access::read);
  for (std::uint32_t i = 0; i < h.limits.session_cap; ++i) {
    h.now_ms += 100;
    ASSERT_TRUE(worker.open("s" + std::to_string(i), 1));
  }
  (void)reader.resolve("s0", 1, 0).value();
  (void)reader.resolve("s2", 1, 0).value();
  for (std::uint32_t i = 0; i < h.limits.session_cap; ++i) {
    h.now_ms += 100;
    if (i != 0 && i != 2) {
      ASSERT_TRUE(worker.open("s" + std::to_string(i), 1));
    }
  }
  ASSERT_TRUE(worker.open("new", 1));
  EXPECT_TRUE(worker.resolve("s1", 1, 0).error().is(MissReason::evicted_lru));
  EXPECT_TRUE(worker.resolve("s0", 1, 0).has_value());
  EXPECT_TRUE(worker.resolve("s2", 1, 0).has_value());
}

}  // namespace
}  // namespace hotkv::test
