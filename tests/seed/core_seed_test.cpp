// The contract this project started from, on the pure core with an injected clock. Each sentence
// has a twin of the same name in process_seed_test.cpp, through real processes and the real daemon.

#include <gtest/gtest.h>

#include <thread>

#include "tests/support/core_harness.hpp"

namespace hotkv::test {
namespace {

class CoreSeed : public ::testing::Test {
 protected:
  void expect_whole() { EXPECT_EQ(h.core->verify(), std::nullopt); }
  void TearDown() override { expect_whole(); }

  // Resolves and checks every byte.
  void expect_content(CoreClient& client, std::string_view session, std::uint64_t epoch,
                      std::uint32_t length) {
    auto view = client.resolve(session, epoch, length);
    ASSERT_TRUE(view.has_value()) << view.error().message();
    EXPECT_EQ(client.wrong_bytes(session, epoch, *view), 0u);
    client.unpin(*view);
  }

  CoreHarness h;
};

TEST_F(CoreSeed, PrefillThenDecodeAppendGrowsOwnedLayers) {
  CoreClient worker(h, h.add_shard());
  ASSERT_TRUE(worker.open("a", 1));
  EXPECT_EQ(worker.append("a", 1, 40), TokenCount{40});
  for (std::uint32_t n = 41; n <= 60; ++n) EXPECT_EQ(worker.append("a", 1, 1), TokenCount{n});
  expect_content(worker, "a", 1, 60);
}

TEST_F(CoreSeed, FourInterleavedSessionsHaveNoKvCrossTalk) {
  CoreClient worker(h, h.add_shard());
  const std::string names[] = {"a", "b", "c", "d"};
  for (const auto& name : names) ASSERT_TRUE(worker.open(name, 1));
  for (std::uint32_t round = 0; round < 37; ++round) {
    for (const auto& name : names) ASSERT_TRUE(worker.append(name, 1, 1 + round % 3));
  }
  std::uint32_t length = 0;
  for (std::uint32_t round = 0; round < 37; ++round) length += 1 + round % 3;
  for (const auto& name : names) expect_content(worker, name, 1, length);
}

TEST_F(CoreSeed, FourSessionsOnRealThreadsStayIsolated) {
  const auto shard = h.add_shard();
  std::vector<std::unique_ptr<CoreClient>> workers;
  std::vector<core::Position> positions;
  const std::string names[] = {"a", "b", "c", "d"};
  for (const auto& name : names) {
    workers.push_back(std::make_unique<CoreClient>(h, shard));
    ASSERT_TRUE(workers.back()->open(name, 1));
    positions.push_back(workers.back()->grant(name, 1, 200).value());
  }
  // The core is one thread's; what threads do at the same time is write, publish and read.
  std::vector<std::thread> threads;
  std::atomic<std::size_t> wrong = 0;
  for (std::size_t i = 0; i < 4; ++i) {
    threads.emplace_back([&, i] {
      const auto writer = workers[i]->pin_for_writing(positions[i]).value();
      for (std::uint32_t n = 0; n < 200; ++n) {
        workers[i]->write(names[i], 1, writer, n, n + 1);
        if (!workers[i]->publish(writer, n, n + 1)) ++wrong;
      }
      const auto view = workers[i]->pin_for_writing(positions[i]).value();
      wrong += workers[i]->wrong_bytes(names[i], 1, view);
      workers[i]->unpin(view);
      workers[i]->unpin(writer);
    });
  }
  for (auto& thread : threads) thread.join();
  EXPECT_EQ(wrong, 0u);
  for (std::size_t i = 0; i < 4; ++i) expect_content(*workers[i], names[i], 1, 200);
}

TEST_F(CoreSeed, KvIsAllocatedOnlyForOwnedLayers) {
  const auto shard = h.add_shard(small_recipe({2, 3}));
  CoreClient worker(h, shard);
  ASSERT_TRUE(worker.open("a", 1));
  ASSERT_TRUE(worker.append("a", 1, 16));
  const Geometry& g = h.files.at(shard)->geometry;
  EXPECT_EQ(h.core->recipe_of(shard).fields().layers, (LayerRange{2, 3}));
  EXPECT_EQ(g.layer_count, 2u);
  // One chunk, and its bytes are exactly K and V of two layers.
  EXPECT_EQ(h.core->status().account.used, g.chunk_stride_bytes);
  EXPECT_EQ(g.chunk_bytes, 16u * 2 * (g.key_row_bytes + g.value_row_bytes));
}

TEST_F(CoreSeed, RecipeBytesPerTokenScalesWithOwnedLayers) {
  EXPECT_EQ(small_recipe({0, 0}).bytes_per_token() * 2, small_recipe({2, 3}).bytes_per_token());
  EXPECT_EQ(small_recipe({0, 0}).bytes_per_token() * 6, small_recipe({0, 5}).bytes_per_token());
}

TEST_F(CoreSeed, TruncateRollsBackAllOwnedLayers) {
  CoreClient worker(h, h.add_shard());
  ASSERT_TRUE(worker.open("a", 1));
  ASSERT_TRUE(worker.append("a", 1, 40, 1));
  ASSERT_TRUE(worker.truncate("a", 1, 21));
  EXPECT_EQ(worker.append("a", 1, 15, 2), TokenCount{36});
  auto view = worker.resolve("a", 1, 36);
  ASSERT_TRUE(view.has_value());
  std::vector<std::uint32_t> versions(36, 1);
  std::fill(versions.begin() + 21, versions.end(), 2);
  EXPECT_EQ(worker.wrong_bytes("a", 1, *view, versions), 0u);
  worker.unpin(*view);
}

TEST_F(CoreSeed, ReleaseOfOneSessionLeavesOthersIntactAndReturnsMemory) {
  CoreClient worker(h, h.add_shard());
  for (const char* name : {"a", "b"}) {
    ASSERT_TRUE(worker.open(name, 1));
    ASSERT_TRUE(worker.append(name, 1, 50));
  }
  const auto before = h.core->status().account;
  ASSERT_TRUE(worker.release("a", 1));
  const auto after = h.core->status().account;
  EXPECT_EQ(after.used * 2, before.used);
  EXPECT_EQ(after.free, before.free + before.used / 2);
  expect_content(worker, "b", 1, 50);
  EXPECT_TRUE(worker.resolve("a", 1, 50).error().is(MissReason::released));
}

TEST_F(CoreSeed, TtlEvictionYieldsAnExplicitMiss) {
  CoreClient worker(h, h.add_shard());
  ASSERT_TRUE(worker.open("a", 1));
  ASSERT_TRUE(worker.append("a", 1, 20));
  h.now_ms += h.limits.ttl_ms - 1;
  h.core->tick();
  expect_content(worker, "a", 1, 20);  // and that was a use
  h.now_ms += h.limits.ttl_ms - 100;
  h.core->tick();
  expect_content(worker, "a", 1, 20);
  h.now_ms += h.limits.ttl_ms + 100;
  h.core->tick();
  const auto miss = worker.resolve("a", 1, 20);
  ASSERT_FALSE(miss.has_value());
  ASSERT_TRUE(miss.error().is(MissReason::evicted_ttl));
  EXPECT_EQ(miss.error().miss().known_length, TokenCount{20});
  EXPECT_EQ(miss.error().miss().age_ms, 0u);
  EXPECT_EQ(h.core->status().account.used, 0u);
}

TEST_F(CoreSeed, LruEvictionBySessionCapReportsAMiss) {
  // As the seed's managers do: sessions are opened and used, and never closed.
  CoreClient worker(h, h.add_shard());
  for (std::uint32_t i = 0; i < h.limits.session_cap; ++i) {
    ++h.now_ms;
    ASSERT_TRUE(worker.open("s" + std::to_string(i), 1));
    ASSERT_TRUE(worker.append("s" + std::to_string(i), 1, 3));
  }
  h.now_ms += 100;
  expect_content(worker, "s0", 1, 3);  // used lately, by its touch word alone
  h.now_ms += 100;
  ASSERT_TRUE(worker.open("one more", 1));
  EXPECT_TRUE(worker.resolve("s1", 1, 3).error().is(MissReason::evicted_lru));
  expect_content(worker, "s0", 1, 3);
  expect_content(worker, "s2", 1, 3);
}

TEST_F(CoreSeed, BudgetEvictionKeepsTheTotalWithinBudget) {
  CoreClient worker(h, h.add_shard());
  for (int i = 0; i < 12; ++i) {
    const std::string name = "s" + std::to_string(i);
    h.now_ms += 2 * kTouchTickMs;  // so that touches tell them apart
    ASSERT_TRUE(worker.open(name, 1));
    ASSERT_TRUE(worker.append(name, 1, 160));  // 10 of 64 chunks
    EXPECT_LE(h.core->status().account.provisioned, h.limits.max_bytes);
    expect_content(worker, name, 1, 160);
    expect_whole();
  }
  EXPECT_TRUE(worker.resolve("s5", 1, 160).error().is(MissReason::evicted_lru));
  for (int i = 6; i < 12; ++i) expect_content(worker, "s" + std::to_string(i), 1, 160);
}

TEST_F(CoreSeed, ASingleSessionExceedingTheBudgetIsAnError) {
  CoreClient worker(h, h.add_shard());
  ASSERT_TRUE(worker.open("other", 1));
  ASSERT_TRUE(worker.append("other", 1, 10));
  ASSERT_TRUE(worker.open("a", 1));
  ASSERT_TRUE(worker.append("a", 1, 30));
  const auto refused = worker.append("a", 1, 64 * 16);
  ASSERT_FALSE(refused.has_value());
  EXPECT_TRUE(refused.error().is(ErrorCode::budget_exceeded));
  EXPECT_NE(refused.error().message().find("needed"), std::string::npos);
  expect_content(worker, "other", 1, 10);  // nobody was evicted for what cannot be had
  expect_content(worker, "a", 1, 30);
}

TEST_F(CoreSeed, UnknownSessionIsAnExplicitMiss) {
  CoreClient worker(h, h.add_shard());
  const auto miss = worker.resolve("never", 1, 10);
  ASSERT_FALSE(miss.has_value());
  EXPECT_TRUE(miss.error().is(MissReason::unknown_session));
  EXPECT_EQ(miss.error().miss().expected_length, TokenCount{10});
}

TEST_F(CoreSeed, SeqLenMismatchIsAnExplicitMiss) {
  CoreClient worker(h, h.add_shard());
  ASSERT_TRUE(worker.open("a", 1));
  ASSERT_TRUE(worker.append("a", 1, 17));
  for (const std::uint32_t expected : {0u, 16u, 18u, 32u}) {
    const auto miss = worker.resolve("a", 1, expected);
    ASSERT_FALSE(miss.has_value());
    ASSERT_TRUE(miss.error().is(MissReason::seq_len_mismatch));
    EXPECT_EQ(miss.error().miss().known_length, TokenCount{17});
  }
}

TEST_F(CoreSeed, StaleRouteEpochRejected) {
  CoreClient worker(h, h.add_shard());
  ASSERT_TRUE(worker.open("a", 5));
  const auto refused = worker.open("a", 4);
  ASSERT_FALSE(refused.has_value());
  EXPECT_TRUE(refused.error().is(ErrorCode::stale_epoch));
  EXPECT_NE(refused.error().message().find("5"), std::string::npos);
  // Also after the context is gone, while the session is remembered.
  ASSERT_TRUE(worker.release("a", 5));
  EXPECT_TRUE(worker.open("a", 4).error().is(ErrorCode::stale_epoch));
  ASSERT_TRUE(worker.open("a", 5));
}

TEST_F(CoreSeed, NewEpochSupersedesAndFreesTheOld) {
  CoreClient worker(h, h.add_shard());
  CoreClient other(h, worker.client.shard);
  ASSERT_TRUE(worker.open("a", 1));
  ASSERT_TRUE(worker.append("a", 1, 100));
  ASSERT_TRUE(other.open("a", 2));  // whoever holds the old one
  EXPECT_EQ(h.core->status().account.used, 0u);
  const auto miss = worker.resolve("a", 1, 100);
  ASSERT_FALSE(miss.has_value());
  ASSERT_TRUE(miss.error().is(MissReason::superseded_epoch));
  EXPECT_EQ(miss.error().miss().known_epoch, Epoch{2});
  EXPECT_TRUE(worker.append("a", 1, 1).error().is(MissReason::superseded_epoch));
  ASSERT_TRUE(other.append("a", 2, 5));
  expect_content(worker, "a", 2, 5);
}

TEST_F(CoreSeed, IncompatibleRecipeRejectedPerRequest) {
  CoreClient worker(h, h.add_shard());
  const Recipe other = small_recipe({0, 2});
  const auto refused = h.core->open(worker.client, id("a"), Epoch{1}, other.fingerprint());
  ASSERT_FALSE(refused.has_value());
  EXPECT_TRUE(refused.error().is(ErrorCode::incompatible_recipe));
  EXPECT_NE(refused.error().message().find("layers.last=1"), std::string::npos);
  const auto explained = h.core->explain(worker.client, id("a"), Epoch{1}, other.fingerprint(),
                                         TokenCount{1}, LengthMatch::exact);
  EXPECT_TRUE(explained.error().is(ErrorCode::incompatible_recipe));
  EXPECT_NE(other.difference_from(h.core->recipe_of(worker.client.shard)).find("layers.last"),
            std::string::npos);
}

TEST_F(CoreSeed, UncertifiedArchitectureFailsClosed) {
  const auto refused = Recipe::make({"mamba", "tiny", DType::f16, 2, 8, 8, {0, 1}});
  ASSERT_FALSE(refused.has_value());
  EXPECT_EQ(refused.error().code, ErrorCode::uncertified_architecture);
}

}  // namespace
}  // namespace hotkv::test
