// The contract this project started from, through the real daemon and real clients. Each sentence
// has a twin of the same name in core_seed_test.cpp, on the pure core with an injected clock.

#include <gtest/gtest.h>

#include <thread>

#include "tests/support/kv_worker.hpp"

namespace hotkv::testing {
namespace {

SessionId session_id(std::string_view text) {
  return SessionId::from(text).value();
}

// 4 KiB chunks of 16 tokens for worker_recipe().
constexpr std::uint64_t kChunk = 4096;

class ProcessSeed : public ::testing::Test {
 protected:
  explicit ProcessSeed(const std::string& max_bytes = "4M", std::vector<std::string> flags = {})
      : daemon({.flags = all_flags(max_bytes, std::move(flags))}) {}
  static std::vector<std::string> all_flags(const std::string& max_bytes,
                                            std::vector<std::string> flags) {
    flags.insert(flags.end(), {"--max-bytes=" + max_bytes, "--hugepages=off", "--chunk-tokens=16"});
    return flags;
  }
  void SetUp() override { ASSERT_TRUE(daemon.wait_ready()) << daemon.err(); }
  void TearDown() override {
    EXPECT_EQ(broken_invariant(daemon), "");
    EXPECT_EQ(daemon.stop(), 0) << daemon.err();
  }
  void expect_content(const KvWorker& worker, std::string_view session, std::uint64_t epoch,
                      std::uint32_t length, const std::vector<std::uint32_t>& versions = {}) {
    const Client& client = const_cast<KvWorker&>(worker).client();
    const auto view = client.resolve(session_id(session), Epoch{epoch}, TokenCount{length});
    ASSERT_TRUE(view.has_value()) << view.error().message();
    EXPECT_EQ(wrong_bytes(client.recipe(), session, epoch, *view, versions), 0u);
  }
  static std::expected<View, CacheMiss> resolve(KvWorker& worker, std::string_view session,
                                                std::uint64_t epoch, std::uint32_t length) {
    return worker.client().resolve(session_id(session), Epoch{epoch}, TokenCount{length});
  }

  DaemonProcess daemon;
};

class ProcessSeedShortTtl : public ProcessSeed {
 protected:
  ProcessSeedShortTtl() : ProcessSeed("4M", {"--default-ttl=1s"}) {}
};
class ProcessSeedSmallCap : public ProcessSeed {
 protected:
  ProcessSeedSmallCap() : ProcessSeed("4M", {"--session-cap=4"}) {}
};
class ProcessSeedSmallBudget : public ProcessSeed {
 protected:
  ProcessSeedSmallBudget() : ProcessSeed("256K") {}  // 64 chunks
};

TEST_F(ProcessSeed, PrefillThenDecodeAppendGrowsOwnedLayers) {
  KvWorker worker(daemon.control_path());
  ASSERT_TRUE(worker.open("a", 1));
  EXPECT_EQ(worker.append("a", 40), TokenCount{40});
  for (std::uint32_t n = 41; n <= 60; ++n) EXPECT_EQ(worker.append("a", 1), TokenCount{n});
  expect_content(worker, "a", 1, 60);
  KvWorker reader(daemon.control_path(), worker_recipe(), Access::read);
  expect_content(reader, "a", 1, 60);
}

TEST_F(ProcessSeed, FourInterleavedSessionsHaveNoKvCrossTalk) {
  KvWorker worker(daemon.control_path());
  const std::string names[] = {"a", "b", "c", "d"};
  for (const auto& name : names) ASSERT_TRUE(worker.open(name, 1));
  std::uint32_t length = 0;
  for (std::uint32_t round = 0; round < 37; ++round) {
    for (const auto& name : names) ASSERT_TRUE(worker.append(name, 1 + round % 3));
    length += 1 + round % 3;
  }
  for (const auto& name : names) expect_content(worker, name, 1, length);
}

TEST_F(ProcessSeed, FourSessionsOnRealThreadsStayIsolated) {
  // One client object, four threads: opens, grants, writes, reads and publishes at the same time.
  KvWorker shared(daemon.control_path());
  std::atomic<std::size_t> wrong = 0;
  std::vector<std::thread> threads;
  for (int i = 0; i < 4; ++i) {
    threads.emplace_back([&, i] {
      const std::string name = "thread-" + std::to_string(i);
      auto context = shared.client().open(session_id(name), Epoch{1});
      if (!context) {
        ++wrong;
        return;
      }
      for (std::uint32_t n = 0; n < 100; ++n) {
        auto writer = context->append(TokenCount{1});
        if (!writer) {
          ++wrong;
          return;
        }
        shared.fill(name, 1, *writer, 0, 1);
        if (!writer->publish()) ++wrong;
        const auto view = shared.client().resolve(session_id(name), Epoch{1}, TokenCount{n + 1});
        wrong += view ? wrong_bytes(shared.client().recipe(), name, 1, *view) : 1;
      }
    });
  }
  for (auto& thread : threads) thread.join();
  EXPECT_EQ(wrong, 0u);
}

TEST_F(ProcessSeed, FourSessionsInFourProcessesStayIsolated) {
  std::vector<std::unique_ptr<ForkedChild>> children;
  for (int i = 0; i < 4; ++i) {
    children.push_back(std::make_unique<ForkedChild>([&, i] {
      KvWorker worker(daemon.control_path());
      const std::string name = "process-" + std::to_string(i);
      if (!worker.open(name, 1)) return 1;
      for (std::uint32_t n = 0; n < 100; ++n) {
        if (!worker.append(name, 1)) return 2;
        const auto view = resolve(worker, name, 1, n + 1);
        if (!view || wrong_bytes(worker.client().recipe(), name, 1, *view) != 0) return 3;
      }
      return 0;
    }));
  }
  for (auto& child : children) EXPECT_EQ(child->exit_code(), 0);
  KvWorker reader(daemon.control_path(), worker_recipe(), Access::read);
  for (int i = 0; i < 4; ++i) expect_content(reader, "process-" + std::to_string(i), 1, 100);
}

TEST_F(ProcessSeed, KvIsAllocatedOnlyForOwnedLayers) {
  KvWorker worker(daemon.control_path(), worker_recipe({2, 3}));
  ASSERT_TRUE(worker.open("a", 1));
  ASSERT_TRUE(worker.append("a", 16));
  const auto view = resolve(worker, "a", 1, 16);
  ASSERT_TRUE(view.has_value());
  EXPECT_EQ(view->layers(), (LayerRange{2, 3}));
  for (const std::uint32_t layer : {2u, 3u}) EXPECT_EQ(view->keys(layer, 0).size(), 16u * 32);
  for (const std::uint32_t layer : {0u, 1u, 4u}) EXPECT_TRUE(view->keys(layer, 0).empty());
  EXPECT_EQ(account_bytes(daemon, "used_bytes"), kChunk);
}

TEST_F(ProcessSeed, RecipeBytesPerTokenScalesWithOwnedLayers) {
  // 64 bytes a token and layer: 64 layers fill a chunk of 16 tokens to 64 KiB, 16 layers to 16 KiB.
  KvWorker wide(daemon.control_path(), worker_recipe({0, 63}));
  ASSERT_TRUE(wide.open("a", 1));
  ASSERT_TRUE(wide.append("a", 16));
  EXPECT_EQ(account_bytes(daemon, "used_bytes"), 65536u);
  KvWorker narrow(daemon.control_path(), worker_recipe({64, 79}));
  ASSERT_TRUE(narrow.open("a", 1));
  ASSERT_TRUE(narrow.append("a", 16));
  EXPECT_EQ(account_bytes(daemon, "used_bytes"), 65536u + 16384u);
}

TEST_F(ProcessSeed, TruncateRollsBackAllOwnedLayers) {
  KvWorker worker(daemon.control_path());
  ASSERT_TRUE(worker.open("a", 1));
  ASSERT_TRUE(worker.append("a", 40, 1));
  ASSERT_TRUE(worker.context("a").truncate(TokenCount{21}));
  EXPECT_EQ(worker.append("a", 15, 2), TokenCount{36});
  std::vector<std::uint32_t> versions(36, 1);
  std::fill(versions.begin() + 21, versions.end(), 2);
  expect_content(worker, "a", 1, 36, versions);
}

TEST_F(ProcessSeed, ReleaseOfOneSessionLeavesOthersIntactAndReturnsMemory) {
  KvWorker worker(daemon.control_path());
  for (const char* name : {"a", "b"}) {
    ASSERT_TRUE(worker.open(name, 1));
    ASSERT_TRUE(worker.append(name, 50));
  }
  const std::uint64_t before = account_bytes(daemon, "used_bytes");
  ASSERT_TRUE(worker.client().release(session_id("a"), Epoch{1}));
  EXPECT_EQ(account_bytes(daemon, "used_bytes") * 2, before);
  expect_content(worker, "b", 1, 50);
  const auto miss = resolve(worker, "a", 1, 50);
  ASSERT_FALSE(miss.has_value());
  EXPECT_EQ(miss.error().reason, MissReason::released);
}

TEST_F(ProcessSeedShortTtl, TtlEvictionYieldsAnExplicitMiss) {
  KvWorker worker(daemon.control_path());
  ASSERT_TRUE(worker.open("a", 1));
  ASSERT_TRUE(worker.append("a", 20));
  expect_content(worker, "a", 1, 20);
  // Looking over the admin socket is no use; a resolve would be one. Bounded by the test's time
  // limit.
  while (admin_get(daemon, "/contexts").find("\"session\"") != std::string::npos) {
    std::this_thread::yield();
  }
  const auto miss = resolve(worker, "a", 1, 20);
  ASSERT_FALSE(miss.has_value());
  EXPECT_EQ(miss.error().reason, MissReason::evicted_ttl);
  EXPECT_EQ(miss.error().known_length, TokenCount{20});
  EXPECT_EQ(account_bytes(daemon, "used_bytes"), 0u);
}

TEST_F(ProcessSeedSmallCap, LruEvictionBySessionCapReportsAMiss) {
  KvWorker worker(daemon.control_path());
  for (int i = 0; i < 5; ++i) {  // never closed: the leases stand
    ASSERT_TRUE(worker.open("s" + std::to_string(i), 1));
    ASSERT_TRUE(worker.append("s" + std::to_string(i), 3));
  }
  int missed = 0;
  for (int i = 0; i < 5; ++i) {
    const auto view = resolve(worker, "s" + std::to_string(i), 1, 3);
    if (view) continue;
    ++missed;
    EXPECT_EQ(view.error().reason, MissReason::evicted_lru);
    EXPECT_TRUE(worker.append("s" + std::to_string(i), 1).error().is(MissReason::evicted_lru));
  }
  EXPECT_EQ(missed, 1);
  expect_content(worker, "s4", 1, 3);
}

TEST_F(ProcessSeedSmallBudget, BudgetEvictionKeepsTheTotalWithinBudget) {
  KvWorker worker(daemon.control_path());
  for (int i = 0; i < 12; ++i) {
    const std::string name = "s" + std::to_string(i);
    ASSERT_TRUE(worker.open(name, 1));
    ASSERT_TRUE(worker.append(name, 160)) << i;
    EXPECT_LE(account_bytes(daemon, "provisioned_bytes"), 256u << 10);
    expect_content(worker, name, 1, 160);
  }
  int live = 0;
  for (int i = 0; i < 12; ++i) {
    const std::string name = "s" + std::to_string(i);
    const auto view = resolve(worker, name, 1, 160);
    if (view) {
      ++live;
      EXPECT_EQ(wrong_bytes(worker.client().recipe(), name, 1, *view), 0u);
    } else {
      EXPECT_EQ(view.error().reason, MissReason::evicted_lru);
    }
  }
  EXPECT_EQ(live, 6);  // of 10 chunks each, in 64
}

TEST_F(ProcessSeedSmallBudget, ASingleSessionExceedingTheBudgetIsAnError) {
  KvWorker worker(daemon.control_path());
  ASSERT_TRUE(worker.open("other", 1));
  ASSERT_TRUE(worker.append("other", 10));
  ASSERT_TRUE(worker.open("a", 1));
  ASSERT_TRUE(worker.append("a", 30));
  const auto refused = worker.append("a", 64 * 16);
  ASSERT_FALSE(refused.has_value());
  EXPECT_TRUE(refused.error().is(ErrorCode::budget_exceeded));
  EXPECT_NE(refused.error().message().find("needed"), std::string::npos);
  expect_content(worker, "other", 1, 10);
  expect_content(worker, "a", 1, 30);
}

TEST_F(ProcessSeed, UnknownSessionIsAnExplicitMiss) {
  KvWorker worker(daemon.control_path());
  const auto miss = resolve(worker, "never", 1, 10);
  ASSERT_FALSE(miss.has_value());
  EXPECT_EQ(miss.error().reason, MissReason::unknown_session);
  EXPECT_EQ(CacheMiss::from_json(miss.error().to_json()), miss.error());
}

TEST_F(ProcessSeed, SeqLenMismatchIsAnExplicitMiss) {
  KvWorker worker(daemon.control_path());
  ASSERT_TRUE(worker.open("a", 1));
  ASSERT_TRUE(worker.append("a", 17));
  for (const std::uint32_t expected : {0u, 16u, 18u, 32u}) {
    const auto miss = resolve(worker, "a", 1, expected);
    ASSERT_FALSE(miss.has_value());
    EXPECT_EQ(miss.error().reason, MissReason::seq_len_mismatch);
    EXPECT_EQ(miss.error().known_length, TokenCount{17});
  }
}

TEST_F(ProcessSeed, StaleRouteEpochRejected) {
  KvWorker worker(daemon.control_path());
  ASSERT_TRUE(worker.open("a", 5));
  const auto refused = worker.open("a", 4);
  ASSERT_FALSE(refused.has_value());
  EXPECT_TRUE(refused.error().is(ErrorCode::stale_epoch));
  EXPECT_NE(refused.error().message().find("epoch 5"), std::string::npos);
}

TEST_F(ProcessSeed, NewEpochSupersedesAndFreesTheOld) {
  KvWorker worker(daemon.control_path());
  KvWorker other(daemon.control_path());
  ASSERT_TRUE(worker.open("a", 1));
  ASSERT_TRUE(worker.append("a", 100));
  ASSERT_TRUE(other.open("a", 2));
  EXPECT_EQ(account_bytes(daemon, "used_bytes"), 0u);
  const auto miss = resolve(worker, "a", 1, 100);
  ASSERT_FALSE(miss.has_value());
  EXPECT_EQ(miss.error().reason, MissReason::superseded_epoch);
  EXPECT_EQ(miss.error().known_epoch, Epoch{2});
  EXPECT_TRUE(worker.append("a", 1).error().is(MissReason::superseded_epoch));
  ASSERT_TRUE(other.append("a", 5));
  expect_content(worker, "a", 2, 5);
}

TEST_F(ProcessSeed, IncompatibleRecipeRejectedAtAttach) {
  KvWorker worker(daemon.control_path());
  const Recipe other = Recipe::make({"llama", "tiny", DType::bf16, 2, 8, 16, {0, 1}}).value();
  ClientOptions options;
  options.socket_path = daemon.control_path();
  const auto refused = Client::attach(options, other);
  ASSERT_FALSE(refused.has_value());
  EXPECT_EQ(refused.error().code, ErrorCode::incompatible_recipe);
  EXPECT_NE(refused.error().message().find("dtype: expected f16, got bf16"), std::string::npos)
      << refused.error().message();
  EXPECT_NE(refused.error().message().find("value_dim: expected 8, got 16"), std::string::npos);
}

TEST_F(ProcessSeed, IncompatibleRecipeRejectedPerRequest) {
  KvWorker worker(daemon.control_path());
  const Recipe other = worker_recipe({0, 2});
  const auto opened = worker.client().open(session_id("a"), Epoch{1}, &other);
  ASSERT_FALSE(opened.has_value());
  EXPECT_TRUE(opened.error().is(ErrorCode::incompatible_recipe));
  EXPECT_NE(opened.error().message().find("layers.last: expected 1, got 2"), std::string::npos)
      << opened.error().message();
  const auto view = worker.client().resolve_as(other, session_id("a"), Epoch{1}, TokenCount{1});
  ASSERT_FALSE(view.has_value());
  EXPECT_TRUE(view.error().is(ErrorCode::incompatible_recipe));
}

TEST_F(ProcessSeed, UncertifiedArchitectureFailsClosed) {
  // Refused at construction; and by the daemon, for a client that certifies more than it does.
  const std::vector<std::string> more{"llama", "mamba"};
  EXPECT_FALSE(Recipe::make({"mamba", "tiny", DType::f16, 2, 8, 8, {0, 1}}).has_value());
  const Recipe recipe = Recipe::make({"mamba", "tiny", DType::f16, 2, 8, 8, {0, 1}}, more).value();
  ClientOptions options;
  options.socket_path = daemon.control_path();
  const auto refused = Client::attach(options, recipe);
  ASSERT_FALSE(refused.has_value());
  EXPECT_EQ(refused.error().code, ErrorCode::uncertified_architecture);
}

}  // namespace
}  // namespace hotkv::testing
