// The model's rows of the contract: what is computed with KV in hotkv equals, bit for bit, what the
// whole model computes without any cache.
//
// The tolerance of logits is 0. Cached and stateless computation use kernels that add in one fixed
// order, token by token; K and V are rounded to the cache's dtype before their first use. So
// nothing is left to differ but a wrong, missing or misplaced row, and any such row shows.

#include <gtest/gtest.h>

#include <cmath>
#include <set>

#include "client/adapter/llama/stateless_llama.hpp"
#include "tests/support/kv_worker.hpp"
#include "tests/support/tiny_llama.hpp"

namespace hotkv::testing {
namespace {

using adapter::AdvanceRequest;
using adapter::TokenId;
using llama::StatelessLlama;

const std::vector<LayerRange> kWhole{{0, 5}};
const std::vector<LayerRange> kTwoRanges{{0, 2}, {3, 5}};
const std::vector<LayerRange> kThreeRanges{{0, 1}, {2, 3}, {4, 5}};

class ModelSeed : public ::testing::Test {
 protected:
  ModelSeed()
      : daemon({.flags = {"--max-bytes=16M", "--hugepages=off", "--chunk-tokens=16"}}),
        weights(tiny_llama()) {}
  void SetUp() override { ASSERT_TRUE(daemon.wait_ready()) << daemon.err(); }
  void TearDown() override {
    EXPECT_EQ(broken_invariant(daemon), "");
    EXPECT_EQ(daemon.stop(), 0) << daemon.err();
  }
  LocalPipeline pipeline(const std::vector<LayerRange>& ranges,
                         std::vector<DType> dtypes = {DType::f32}) {
    return LocalPipeline(daemon.control_path(), weights, ranges, std::move(dtypes));
  }
  // Decodes over a prompt and compares the logits of every step.
  void expect_decode_parity(const std::vector<LayerRange>& ranges) {
    LocalPipeline cached = pipeline(ranges);
    const StatelessLlama whole(weights, DType::f32);
    std::vector<TokenId> tokens = some_tokens(5);
    const auto chosen = cached.decode(key_of("a"), tokens, 60);
    ASSERT_EQ(chosen.size(), 60u);
    for (std::size_t step = 0; step < chosen.size(); ++step) {
      ASSERT_EQ(cached.tail().sampled_logits[step], whole.logits(tokens)) << "step " << step;
      tokens.push_back(chosen[step]);
    }
    EXPECT_EQ(chosen, whole.greedy(some_tokens(5), 60));
    // A token that repeats for ever would make the comparison of tokens worth little.
    EXPECT_GT(std::set(chosen.begin(), chosen.end()).size(), 10u);
  }

  DaemonProcess daemon;
  llama::Weights weights;
};

TEST_F(ModelSeed, CachedFullShardDecodeMatchesTheStatelessWholeModel) {
  expect_decode_parity(kWhole);
}

TEST_F(ModelSeed, MultiRangeCachedDecodeParityAcrossASeam) {
  expect_decode_parity(kTwoRanges);
}

TEST_F(ModelSeed, MultiRangeCachedDecodeParityInThreeRanges) {
  expect_decode_parity(kThreeRanges);
}

TEST_F(ModelSeed, CachedPrefillsNextTokenLogitsMatchTheWholeModel) {
  LocalPipeline cached = pipeline(kWhole);
  const StatelessLlama whole(weights, DType::f32);
  // Around chunks of 16 tokens and slices of 128.
  for (const std::uint32_t length : {1u, 2u, 15u, 16u, 17u, 40u, 128u, 129u, 300u}) {
    const auto tokens = some_tokens(length, length);
    ASSERT_TRUE(cached.advance(key_of("prefill", length), tokens, 0).token) << length;
    EXPECT_EQ(cached.tail().sampled_logits.back(), whole.logits(tokens)) << length << " tokens";
  }
}

TEST_F(ModelSeed, TheResidualAtTheSeamIsTheWholeModels) {
  LocalPipeline cached = pipeline(kTwoRanges);
  const auto tokens = some_tokens(23);
  ASSERT_TRUE(cached.advance(key_of("a"), tokens, 0).token);
  const StatelessLlama whole(weights, DType::f32);
  EXPECT_EQ(cached.shard(0).last_residual, whole.residual(tokens, 2));
  EXPECT_EQ(cached.shard(1).last_residual, whole.residual(tokens, 5));
}

// FR-107: a sampled token is text, not KV. It counts once it has been run, on every shard.
TEST_F(ModelSeed, TheLastSampledTokenIsNotCountedAsCached) {
  LocalPipeline cached = pipeline(kTwoRanges);
  auto tokens = some_tokens(15);
  for (const std::uint32_t length : {15u, 16u, 17u}) {  // around the end of a chunk
    const auto next = cached.advance(key_of("a"), tokens, length == 15 ? 0 : length - 1);
    ASSERT_TRUE(next.token) << next.refusal->message();
    EXPECT_EQ(next.cached.value(), length);
    for (const std::size_t shard : {0u, 1u}) {
      const auto view = cached.adapter(shard).client().get(SessionId::from("a").value(), Epoch{1});
      ASSERT_TRUE(view);
      EXPECT_EQ(view->length().value(), length);
    }
    tokens.push_back(*next.token);
  }
}

TEST_F(ModelSeed, HowTokensAreCutIntoStepsChangesNothing) {
  LocalPipeline cached = pipeline(kTwoRanges);
  const auto tokens = some_tokens(50);
  ASSERT_TRUE(cached.advance(key_of("at-once"), tokens, 0).token);
  const auto at_once = cached.tail().sampled_logits.back();
  std::uint32_t length = 0;
  for (const std::uint32_t cut : {1u, 15u, 16u, 17u, 33u, 49u, 50u}) {
    ASSERT_TRUE(
        cached.advance(key_of("in-pieces"), {tokens.begin(), tokens.begin() + cut}, length).token);
    length = cut;
  }
  EXPECT_EQ(cached.tail().sampled_logits.back(), at_once);
}

TEST_F(ModelSeed, FourInterleavedSessionsEachMatchTheirOwnReference) {
  LocalPipeline cached = pipeline(kTwoRanges);
  const StatelessLlama whole(weights, DType::f32);
  std::vector<AdvanceRequest> sessions;
  for (std::uint32_t i = 0; i < 4; ++i) {
    sessions.push_back({key_of("session-" + std::to_string(i)), some_tokens(3 + 7 * i, i), {}});
  }
  std::vector<std::vector<TokenId>> chosen(4);
  for (std::uint32_t step = 0; step < 40; ++step) {
    const std::uint32_t i = (step * 3 + step / 4) % 4;  // not in turn
    const auto next = cached.advance(std::span(&sessions[i], 1)).front();
    ASSERT_TRUE(next.token) << next.refusal->message();
    sessions[i].expected = next.cached;
    sessions[i].tokens.push_back(*next.token);
    chosen[i].push_back(*next.token);
  }
  std::set<std::vector<TokenId>> different;
  for (std::uint32_t i = 0; i < 4; ++i) {
    ASSERT_GE(chosen[i].size(), 8u);
    EXPECT_EQ(chosen[i], whole.greedy(some_tokens(3 + 7 * i, i), chosen[i].size())) << i;
    different.insert({chosen[i].begin(), chosen[i].begin() + 8});
  }
  EXPECT_EQ(different.size(), 4u);
}

TEST_F(ModelSeed, ABatchOfSessionsDecodesInOneStepWithOneControlMessage) {
  constexpr std::uint32_t kSessions = 8;
  LocalPipeline cached = pipeline(kWhole);
  const StatelessLlama whole(weights, DType::f32);
  std::vector<AdvanceRequest> batch;
  for (std::uint32_t i = 0; i < kSessions; ++i) {
    // 16 tokens fill a chunk: the step after the prefill needs a new one in every session.
    batch.push_back({key_of("session-" + std::to_string(i)), some_tokens(16, i), {}});
  }
  const auto step = [&] {
    const auto results = cached.advance(batch);
    for (std::uint32_t i = 0; i < kSessions; ++i) {
      ASSERT_TRUE(results[i].token) << results[i].refusal->message();
      batch[i].tokens.push_back(*results[i].token);
      batch[i].expected = results[i].cached;
    }
  };
  step();
  EXPECT_EQ(cached.shard(0).batch_sizes, (std::vector<std::size_t>{kSessions}));
  const std::uint64_t before = frames_received(daemon);
  step();
  const std::uint64_t after = frames_received(daemon);
  EXPECT_EQ(after - before, 1u) << "a chunk each for " << kSessions << " sessions";
  for (int i = 0; i < 10; ++i) step();
  EXPECT_EQ(frames_received(daemon) - after, 0u) << "ten steps within the chunks";
  EXPECT_EQ(cached.shard(0).batch_sizes, (std::vector<std::size_t>(12, kSessions)));
  for (std::uint32_t i = 0; i < kSessions; ++i) {
    const auto expected = whole.greedy(some_tokens(16, i), 12);
    EXPECT_TRUE(std::ranges::equal(expected, std::span(batch[i].tokens).last(12))) << i;
  }
}

class ModelSeedInDType : public ModelSeed, public ::testing::WithParamInterface<DType> {};

// The head's half of the layers: its emitted residual against the stateless model with KV of the
// same dtype, exactly; against f32, within what rounding K and V to the dtype can do.
TEST_P(ModelSeedInDType, HalfTheLayersMatchTheStatelessModelOfTheSameDType) {
  LocalPipeline cached = pipeline(kTwoRanges, {GetParam()});
  const StatelessLlama same(weights, GetParam());
  std::vector<TokenId> tokens = some_tokens(20);
  for (std::uint32_t step = 0, length = 0; step < 30; ++step) {
    const auto next = cached.advance(key_of("a"), tokens, length);
    ASSERT_TRUE(next.token) << next.refusal->message();
    const auto expected = same.residual(tokens, 2);
    const auto& emitted = cached.shard(0).last_residual;
    ASSERT_TRUE(std::ranges::equal(emitted, std::span(expected).last(emitted.size()))) << step;
    ASSERT_EQ(cached.tail().sampled_logits.back(), same.logits(tokens)) << step;
    length = next.cached.value();
    tokens.push_back(*next.token);
  }
}

TEST_P(ModelSeedInDType, HalfTheLayersDifferFromF32ByItsRoundingOnly) {
  // Half a step of the fraction: 24, 11 and 8 bits.
  const float rounding = GetParam() == DType::f32   ? 0.0f
                         : GetParam() == DType::f16 ? 0x1p-11f
                                                    : 0x1p-8f;
  LocalPipeline cached = pipeline(kTwoRanges, {GetParam()});
  const auto tokens = some_tokens(60);
  ASSERT_TRUE(cached.advance(key_of("a"), tokens, 0).token);
  const auto exact = StatelessLlama(weights, DType::f32).residual(tokens, 2);
  const auto& emitted = cached.shard(0).last_residual;
  ASSERT_EQ(emitted.size(), exact.size());
  double error = 0, size = 0;
  for (std::size_t i = 0; i < exact.size(); ++i) {
    error += std::pow(emitted[i] - exact[i], 2);
    size += std::pow(exact[i], 2);
  }
  // Relative, in the Euclidean norm. Each of three layers rounds K and V once; 8 leaves room for
  // what softmax and the norms make of it, and is far below what one wrong row does.
  EXPECT_LE(std::sqrt(error / size), 8 * rounding);
  EXPECT_EQ(error > 0, rounding > 0) << "the cache is not in the dtype that it says";
}

TEST_F(ModelSeed, ShardsOfOneModelMayKeepDifferentDTypes) {
  LocalPipeline cached = pipeline(kTwoRanges, {DType::f16, DType::f32});
  const auto tokens = some_tokens(20);
  const auto next = cached.advance(key_of("a"), tokens, 0);
  ASSERT_TRUE(next.token);
  EXPECT_EQ(cached.shard(0).last_residual, StatelessLlama(weights, DType::f16).residual(tokens, 2));
}

INSTANTIATE_TEST_SUITE_P(DTypes, ModelSeedInDType,
                         ::testing::Values(DType::f32, DType::f16, DType::bf16),
                         [](const auto& instance) {
                           return std::string(dtype_traits(instance.param)->name);
                         });

}  // namespace
}  // namespace hotkv::testing
