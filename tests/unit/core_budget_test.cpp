// Budgets whose parts differ, and what a refusal or a teardown costs in a shard that is full.

#include <gtest/gtest.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <memory>
#include <optional>
#include <random>
#include <string>
#include <vector>

#include "daemon/core/core.hpp"
#include "tests/support/core_harness.hpp"

namespace hotkv::test {
namespace {

constexpr std::uint64_t kPage = 4096;
constexpr std::uint32_t kTokens = 16;  // of a chunk

// "free 8192" in a refusal: what could be had at once.
std::uint64_t free_bytes(const Refusal& refusal) {
  const std::string text = refusal.message();
  const std::size_t at = text.find("free ");
  return at == std::string::npos ? 0 : std::stoull(text.substr(at + 5));
}

// Two shards whose chunks are of two and of three pages, under one budget.
class BudgetOfTwoSizes : public ::testing::Test {
 protected:
  static core::Limits limits() {
    auto limits = CoreHarness::small_limits();
    limits.max_bytes = 120 * kPage;
    limits.session_cap = 100;
    return limits;
  }
  void TearDown() override { EXPECT_EQ(h.core->verify(), std::nullopt); }

  bool add(CoreClient& of, const std::string& session, std::uint32_t chunks) {
    h.now_ms += 10;
    return of.open(session, 1).has_value() && of.append(session, 1, chunks * kTokens).has_value();
  }
  // Alternate contexts of one chunk until everything is used; then every second one goes, and what
  // stays is pinned.
  void make_comb() {
    std::vector<std::pair<CoreClient*, std::string>> teeth;
    for (int i = 0; i < 24; ++i) {
      for (CoreClient* of : {&two, &three}) {
        teeth.emplace_back(of, "tooth " + std::to_string(i));
        ASSERT_TRUE(add(*of, teeth.back().second, 1));
      }
    }
    for (std::size_t i = 0; i < teeth.size(); ++i) {
      auto& [of, name] = teeth[i];
      if (i / 2 % 2 == 0) {
        ASSERT_TRUE(of->release(name, 1));
      } else {
        ASSERT_TRUE(of->resolve(name, 1, kTokens).has_value());
      }
    }
  }
  std::uint64_t available() const {
    const auto account = h.core->status().account;
    return limits().max_bytes - account.used;
  }

  CoreHarness h{limits()};
  CoreClient two{h, h.add_shard(small_recipe({0, 7}, "two pages"))};
  CoreClient three{h, h.add_shard(small_recipe({0, 11}, "three pages"))};
};

// An adoption can bring more than the limits of today. The oldest contexts of both shards go, as
// far as it takes; what is left is one another's.
TEST_F(BudgetOfTwoSizes, WhatIsAboveALowerBudgetGoesOldestFirstOverAllShards) {
  for (int i = 0; i < 10; ++i) {
    ASSERT_TRUE(add(two, std::to_string(i), 2));
    ASSERT_TRUE(add(three, std::to_string(i), 2));
  }
  h.limits.max_bytes = 50 * kPage;
  h.restart();
  std::uint64_t punched = 0;
  for (const core::ExtentRange& range : h.core->shrink_to_limits(1000)) {
    punched += range.size_bytes;
    h.punch(*h.files.at(range.shard), range);
  }
  const auto account = h.core->status().account;
  EXPECT_EQ(punched + account.provisioned, 100 * kPage);
  EXPECT_LE(account.provisioned, 50 * kPage);
  std::vector<std::string> left;
  for (const core::ContextInfo& context : h.core->contexts()) {
    left.emplace_back(context.session.bytes());
  }
  // Of each shard the five used last, and nobody was ended who could have stayed.
  std::ranges::sort(left);
  EXPECT_EQ(left, (std::vector<std::string>{"5", "5", "6", "6", "7", "7", "8", "8", "9", "9"}));
  EXPECT_TRUE(h.core->shrink_to_limits(1000).empty());
}

// FR-032: what fits by bytes is granted, whatever pattern the free chunks make: chunks of one shard
// are of one size, and their pages go to the other shard through the kernel.
TEST_F(BudgetOfTwoSizes, ACombOfFreeChunksIsGrantedToItsLastByte) {
  for (CoreClient* of : {&two, &three}) {
    SCOPED_TRACE(of == &two ? "two" : "three");
    make_comb();
    EXPECT_EQ(available(), 60 * kPage);
    const std::uint32_t chunks = of == &two ? 30 : 20;
    ASSERT_TRUE(of->open("large", 1));
    const auto refused = of->append("large", 1, chunks * kTokens + 1);
    ASSERT_FALSE(refused.has_value());
    EXPECT_EQ(free_bytes(refused.error()), 60 * kPage);
    const auto granted = of->append("large", 1, chunks * kTokens);
    EXPECT_TRUE(granted.has_value()) << granted.error().message();
    const auto large = of->resolve("large", 1, chunks * kTokens).value();
    EXPECT_EQ(of->wrong_bytes("large", 1, large), 0u);
    for (CoreClient* each : {&two, &three}) {
      each->die();
      h.liveness.gone.clear();
      each->client = h.attach(each->client.shard);
    }
    for (const auto& context : h.core->contexts()) {
      CoreClient& of_it = context.shard == two.client.shard ? two : three;
      ASSERT_TRUE(of_it.release(context.session.bytes(), 1));
    }
  }
}

// FR-032: and that stays so however long contexts of both sizes have come and gone.
TEST_F(BudgetOfTwoSizes, TheLargestThatFitsStaysTheSameOverALongSoak) {
  std::mt19937 random(3);
  const auto pick = [&](std::uint32_t below) {
    return static_cast<std::uint32_t>(random() % below);
  };
  for (int round = 0; round < 40; ++round) {
    for (int i = 0; i < 100; ++i) {
      CoreClient& of = pick(2) == 0 ? two : three;
      const std::string name = "s" + std::to_string(pick(30));
      if (pick(3) == 0) {
        (void)of.release(name, 1);
      } else {
        (void)add(of, name, 1 + pick(4));
      }
      const auto account = h.core->status().account;
      ASSERT_EQ(account.used + account.free + account.kept + account.in_transit,
                account.provisioned);
    }
    CoreClient& of = round % 2 == 0 ? two : three;
    const std::uint32_t chunks = round % 2 == 0 ? 60 : 40;
    ASSERT_TRUE(add(of, "largest", chunks)) << "round " << round;
    ASSERT_TRUE(of.release("largest", 1));
  }
}

// FR-037: a bound of one owner below the budget, equal to it, or none: idle contexts go first, and
// only where everything is pinned is an append refused. Each outcome has its counter.
TEST(Budgets, WhateverTheirRelationIdleContextsGoFirstAndOnlyPinnedOnesRefuse) {
  for (const std::uint32_t owner_chunks : {0u, 4u, 7u, 8u}) {
    SCOPED_TRACE(owner_chunks);
    auto limits = CoreHarness::small_limits();
    limits.max_bytes = 8 * kPage;
    limits.max_bytes_per_owner = owner_chunks * kPage;
    const std::uint32_t fit = owner_chunks == 0 ? 8 : owner_chunks;
    limits.session_cap = fit + 1;  // room for one more than there is memory for
    CoreHarness h(limits);
    CoreClient worker(h, h.add_shard());
    const auto counters = [&] { return h.core->status().shards.at(0).counters; };
    const auto evicted = [&] {
      return counters().ended[static_cast<std::size_t>(MissReason::evicted_lru)];
    };
    const auto name = [](std::uint32_t i) { return "s" + std::to_string(i); };
    for (std::uint32_t i = 0; i < 3 * fit; ++i) {
      h.now_ms += 1;
      ASSERT_TRUE(worker.open(name(i), 1));
      ASSERT_TRUE(worker.append(name(i), 1, kTokens)) << i;
    }
    EXPECT_EQ(evicted(), 2 * fit);
    EXPECT_EQ(counters().evictions_in_vain, 0u);
    for (std::uint32_t i = 2 * fit; i < 3 * fit; ++i) {
      (void)worker.resolve(name(i), 1, kTokens).value();
    }
    ASSERT_TRUE(worker.open("new", 1));
    EXPECT_TRUE(worker.append("new", 1, 1).error().is(ErrorCode::budget_exceeded));
    EXPECT_EQ(evicted(), 2 * fit);
    EXPECT_EQ(counters().evictions_in_vain, 1u);
    EXPECT_EQ(counters().refusals[static_cast<std::size_t>(ErrorCode::budget_exceeded)], 1u);
  }
}

// ---- what things cost, measured side by side in one run -----------------------------------------

using Clock = std::chrono::steady_clock;

template <class Body>
double median_us(int rounds, Body body) {
  std::vector<double> times;
  for (int i = 0; i < rounds; ++i) times.push_back(body());
  std::ranges::nth_element(times, times.begin() + rounds / 2);
  return times[static_cast<std::size_t>(rounds / 2)];
}
double us_since(Clock::time_point begin) {
  return std::chrono::duration<double, std::micro>(Clock::now() - begin).count();
}

// FR-011: the time of a teardown does not depend on how many sessions others hold.
TEST(CoreCosts, ATeardownTakesNoLongerBesideFiftyTimesAsManySessions) {
  const auto teardown_beside = [](std::uint32_t sessions) {
    auto limits = CoreHarness::small_limits();
    limits.session_cap = sessions + 300;
    CoreHarness h(limits);
    const auto shard = h.add_shard();
    CoreClient holder(h, shard);
    for (std::uint32_t i = 0; i < sessions; ++i) {
      EXPECT_TRUE(holder.open("s" + std::to_string(i), 1));
    }
    return median_us(200, [&, i = 0]() mutable {
      CoreClient dying(h, shard);
      EXPECT_TRUE(dying.open("mine" + std::to_string(++i), 1));
      const auto begin = Clock::now();
      dying.die();
      return us_since(begin);
    });
  };
  const double beside_few = teardown_beside(1000);
  const double beside_many = teardown_beside(50'000);
  std::printf("teardown: %.2f us beside 1000 sessions, %.2f us beside 50000\n", beside_few,
              beside_many);
  EXPECT_LE(beside_many, 10 * beside_few + 5);
}

// FR-008: a teardown costs what its client held, chunk by chunk, and little of that.
TEST(CoreCosts, ATeardownIsLinearInTheChunksThatItsClientHeld) {
  const auto us_per_chunk = [](std::uint32_t chunks_of_each) {
    constexpr std::uint32_t kContexts = 64;
    auto limits = CoreHarness::small_limits();
    limits.max_bytes = kContexts * chunks_of_each * kPage;
    limits.session_cap = kContexts;
    CoreHarness h(limits);
    const auto shard = h.add_shard();
    const double us = median_us(5, [&] {
      CoreClient dying(h, shard);
      for (std::uint32_t i = 0; i < kContexts; ++i) {
        const std::string name = "s" + std::to_string(i);
        EXPECT_TRUE(dying.open(name, 1));
        EXPECT_TRUE(dying.append(name, 1, 1));
        EXPECT_TRUE(dying.grant(name, 1, chunks_of_each * kTokens));
      }
      const auto begin = Clock::now();
      dying.die();
      while (h.core->has_leases_to_end()) h.core->end_some_leases();
      const double took = us_since(begin);
      EXPECT_EQ(h.core->status().account.used, kContexts * kPage);
      return took;
    });
    std::printf("teardown of %u chunks: %.0f us\n", kContexts * chunks_of_each, us);
    return us / (kContexts * chunks_of_each);
  };
  const double of_few = us_per_chunk(20);
  EXPECT_LE(us_per_chunk(500), 10 * of_few);
}

// A shard that is full of pinned contexts of one chunk, and a client that wants one more.
class PinnedShard {
 public:
  explicit PinnedShard(std::uint32_t contexts) {
    auto limits = CoreHarness::small_limits();
    limits.max_bytes = contexts * kPage;
    limits.session_cap = contexts + 1;
    limits.clients_per_shard = 32;
    h_ = std::make_unique<CoreHarness>(limits);
    const auto shard = h_->add_shard();
    worker_ = std::make_unique<CoreClient>(*h_, shard);
    for (std::uint32_t i = 0; i < contexts; ++i) {
      if (i % kPinsPerPage == 0) readers_.push_back(h_->attach(shard, Access::read));
      pin(i);
    }
    const auto opened = h_->core->open(worker_->client, id("new"), Epoch{1}, fingerprint());
    generation_ = opened.value().generation;
  }
  // The time of one append that is refused.
  double refusal_us() {
    const auto begin = Clock::now();
    const auto answer =
        h_->core->append(worker_->client, id("new"), Epoch{1}, generation_, TokenCount{1});
    h_->core->end_message(worker_->client.shard);
    const double us = us_since(begin);
    EXPECT_TRUE(std::holds_alternative<Refusal>(answer));
    return us;
  }

 private:
  Fingerprint fingerprint() const {
    return h_->core->recipe_of(worker_->client.shard).fingerprint();
  }
  void pin(std::uint32_t number) {
    const std::string name = "s" + std::to_string(number);
    const auto at = h_->core->open(worker_->client, id(name), Epoch{1}, fingerprint()).value();
    (void)h_->core->append(worker_->client, id(name), Epoch{1}, at.generation, TokenCount{1});
    h_->settle();
    (void)h_->core->take_finished_grants();
    ClientPage& page = h_->tables(worker_->client.shard).untrusted_page(readers_.back().page);
    const std::uint32_t word = number % kPinsPerPage;
    page.high_water.store(word + 1);
    EXPECT_TRUE(claim_pin(page.pins[word], {at.slot, at.generation}));
  }

  std::unique_ptr<CoreHarness> h_;
  std::unique_ptr<CoreClient> worker_;
  std::vector<core::ClientId> readers_;
  Generation generation_;
};

// FR-038: who is pinned stands in the memory of clients, so a refusal has to look at every context
// once: what it costs grows with their number, and no faster.
TEST(CoreCosts, ARefusedAppendLooksAtEachPinnedContextOnce) {
  PinnedShard few(100);
  PinnedShard many(10'000);
  const double beside_few = median_us(100, [&] { return few.refusal_us(); });
  const double beside_many = median_us(100, [&] { return many.refusal_us(); });
  std::printf("refused append: %.1f us beside 100 pinned contexts, %.1f us beside 10000\n",
              beside_few, beside_many);
  EXPECT_LE(beside_many, 2000 * beside_few);
}

}  // namespace
}  // namespace hotkv::test
