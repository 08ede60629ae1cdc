// Shards that have lost something, by turns: what the head makes of it. Whatever happened, the
// token is the one that the whole model would choose, and what was recomputed and why is said.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <optional>

#include "client/adapter/llama/stateless_llama.hpp"
#include "tests/support/at_fault_point.hpp"
#include "tests/support/kv_worker.hpp"
#include "tests/support/tiny_llama.hpp"

namespace hotkv::testing {
namespace {

using adapter::Advance;
using adapter::AdvanceRequest;
using adapter::ShardInput;
using adapter::TokenId;

const std::vector<LayerRange> kRanges{{0, 1}, {2, 3}, {4, 5}};
constexpr std::uint32_t kLength = 300;  // three slices, nineteen chunks

class AdapterRecovery : public ::testing::Test {
 protected:
  AdapterRecovery()
      : daemon({.flags = {"--max-bytes=64M", "--hugepages=off", "--chunk-tokens=16"}}),
        weights(tiny_llama()),
        whole(weights, DType::f32) {}
  void SetUp() override { ASSERT_TRUE(daemon.wait_ready()) << daemon.err(); }
  void TearDown() override {
    if (daemon.pid() < 0) return;
    EXPECT_EQ(broken_invariant(daemon), "");
    EXPECT_EQ(daemon.stop(), 0) << daemon.err();
  }
  LocalPipeline pipeline() { return LocalPipeline(daemon.control_path(), weights, kRanges); }
  Client client_of(std::size_t index) {
    ClientOptions options;
    options.socket_path = daemon.control_path();
    const auto recipe = adapter::recipe_for(weights.config(), kRanges[index], DType::f32);
    return Client::attach(options, recipe.value()).value();
  }
  // Every shard has `tokens`, and nobody holds a lease.
  void run_and_give_back(const ContextKey& key, const std::vector<TokenId>& tokens) {
    LocalPipeline first = pipeline();
    ASSERT_TRUE(first.advance(key, tokens, 0).token);
    ASSERT_TRUE(first.give_back(key));
  }
  // One shard rolls back to `length`, or loses its context.
  void cut(std::size_t index, const ContextKey& key, std::uint32_t length) {
    Client client = client_of(index);
    if (length == 0) {
      ASSERT_TRUE(client.release(key.session, key.epoch));
      return;
    }
    auto context = client.open(key.session, key.epoch);
    ASSERT_TRUE(context) << context.error().message();
    ASSERT_TRUE(context->truncate(TokenCount{length}));
  }
  void expect_token_of_whole_model(LocalPipeline& cached, const Advance& advance,
                                   const std::vector<TokenId>& tokens) {
    ASSERT_TRUE(advance.token) << advance.refusal->message();
    const auto logits = whole.logits(tokens);
    EXPECT_EQ(cached.tail().sampled_logits.back(), logits);
    EXPECT_EQ(*advance.token, adapter::SamplingContract::greedy().choose(logits));
    EXPECT_EQ(advance.cached.value(), tokens.size());
  }

  DaemonProcess daemon;
  llama::Weights weights;
  llama::StatelessLlama whole;
};

struct Lengths {
  std::uint32_t head, middle, tail;  // 0: the context is released
  friend void PrintTo(const Lengths& lengths, std::ostream* out) {
    *out << lengths.head << ", " << lengths.middle << ", " << lengths.tail;
  }
};

class AdapterRecoveryOfLengths : public AdapterRecovery,
                                 public ::testing::WithParamInterface<Lengths> {};

TEST_P(AdapterRecoveryOfLengths, ShardsThatDifferResumeFromTheSmallest) {
  const auto [head, middle, tail] = GetParam();
  const ContextKey key = key_of("a");
  run_and_give_back(key, some_tokens(kLength));
  if (head != kLength) cut(0, key, head);
  if (middle != kLength) cut(1, key, middle);
  if (tail != kLength) cut(2, key, tail);

  LocalPipeline cached = pipeline();
  const auto tokens = some_tokens(kLength + 1);
  const Advance advance = cached.advance(key, tokens, kLength);
  expect_token_of_whole_model(cached, advance, tokens);
  const std::uint32_t smallest = std::min({head, middle, tail});
  EXPECT_EQ(advance.reused.value(), smallest);
  // What was lost, and what the head ran in vain before it heard of it: at most a slice a loss.
  EXPECT_GE(advance.recomputed.value(), kLength - smallest);
  EXPECT_LE(advance.recomputed.value(), kLength - smallest + 2 * adapter::HeadDriver::kStepTokens);
  ASSERT_EQ(advance.why.has_value(), smallest < kLength);
  if (smallest < kLength) {
    EXPECT_EQ(advance.why->reason,
              smallest == 0 ? MissReason::released : MissReason::seq_len_mismatch);
  }
}

INSTANTIATE_TEST_SUITE_P(Lengths, AdapterRecoveryOfLengths,
                         ::testing::Values(Lengths{300, 300, 300}, Lengths{300, 299, 300},
                                           Lengths{300, 300, 299}, Lengths{299, 300, 300},
                                           Lengths{300, 60, 300}, Lengths{300, 60, 40},
                                           Lengths{128, 256, 300}, Lengths{256, 128, 16},
                                           Lengths{0, 300, 300}, Lengths{300, 0, 300},
                                           Lengths{300, 300, 0}, Lengths{300, 160, 0},
                                           Lengths{0, 0, 0}));

TEST_F(AdapterRecovery, ALostAnswerOfASoleSequenceIsUsed) {
  const ContextKey key = key_of("a");
  const auto tokens = some_tokens(200);
  run_and_give_back(key, tokens);  // and nobody heard of it
  LocalPipeline cached = pipeline();
  const Advance advance = cached.advance(key, tokens, 0, /*is_sole=*/true);
  expect_token_of_whole_model(cached, advance, tokens);
  EXPECT_EQ(advance.reused.value(), 199u) << "the last token is run for its logits";
  EXPECT_EQ(advance.recomputed.value(), 1u);
  EXPECT_FALSE(advance.why);
}

TEST_F(AdapterRecovery, ASequenceThatWasChangedUnderItsKeyIsNeverMixedWithTheOldOne) {
  const ContextKey key = key_of("a");
  run_and_give_back(key, some_tokens(200));
  LocalPipeline cached = pipeline();
  std::vector<TokenId> edited = some_tokens(90);
  for (std::size_t i = 50; i < edited.size(); ++i) edited[i] = (edited[i] + 1) % 300;
  const Advance half = cached.advance(key, edited, 50);
  expect_token_of_whole_model(cached, half, edited);
  EXPECT_EQ(half.reused.value(), 50u);
  EXPECT_EQ(half.recomputed.value(), 0u) << "these tokens were never run";
  const auto other = some_tokens(70, 9);
  const Advance anew = cached.advance(key, other, 0);
  expect_token_of_whole_model(cached, anew, other);
  EXPECT_EQ(anew.reused.value(), 0u);
}

// The way to the shards behind, as a socket is: it breaks once, before or after they have run.
class BrokenLink final : public adapter::ShardLink {
 public:
  BrokenLink(adapter::ShardLink& behind, int breaks_at, bool after)
      : behind_(&behind), breaks_at_(breaks_at), after_(after) {}
  std::expected<void, Error> reach() override { return {}; }
  std::vector<adapter::ShardResult> run(std::span<const ShardInput> batch) override {
    const bool is_broken = ++calls_ == breaks_at_;
    if (!is_broken) return behind_->run(batch);
    if (after_) (void)behind_->run(batch);
    const Refusal refusal(Error{ErrorCode::system_error, "send", "next", "it hung up"});
    return std::vector<adapter::ShardResult>(batch.size(),
                                             std::unexpected(adapter::ShardRefusal(refusal)));
  }
  std::expected<void, Refusal> give_back(std::span<const ContextKey> keys) override {
    return behind_->give_back(keys);
  }

 private:
  adapter::ShardLink* behind_;
  int breaks_at_;
  bool after_;
  int calls_ = 0;
};

TEST_F(AdapterRecovery, APrefillThatWasInterruptedGoesOnWhereItWas) {
  const auto tokens = some_tokens(300);
  LocalPipeline cached = pipeline();
  for (const int slice : {1, 2, 3}) {
    for (const bool after : {false, true}) {
      const ContextKey key = key_of("a", static_cast<std::uint64_t>(slice * 2 + after));
      BrokenLink broken(cached.link(1), slice, after);
      adapter::PipelineStage stage(cached.adapter(0), &broken);
      adapter::HeadDriver driver(cached.adapter(0), stage);
      std::vector<AdvanceRequest> request{{key, tokens}};
      const Advance interrupted = driver.advance(request).front();
      ASSERT_TRUE(interrupted.refusal && interrupted.refusal->is(ErrorCode::system_error));
      const auto before = static_cast<std::uint32_t>(slice - 1) * 128;
      EXPECT_EQ(interrupted.cached.value(), before);
      EXPECT_EQ(interrupted.recomputed.value(), 0u);
      request.front().expected = interrupted.cached;
      request.front().is_sole = true;
      const Advance advance = driver.advance(request).front();
      expect_token_of_whole_model(cached, advance, tokens);
      // What the head ran before the link broke: the shards behind have it, or it is run again.
      const std::uint32_t slice_size = std::min(128u, 300 - before);
      if (slice == 3) {
        EXPECT_EQ(advance.recomputed.value(), after ? 1u : slice_size + 1) << slice << after;
      } else {
        EXPECT_LE(advance.recomputed.value(), after ? 0u : 2 * slice_size) << slice << after;
        EXPECT_GE(advance.recomputed.value(), after ? 0u : slice_size) << slice << after;
      }
    }
  }
}

TEST_F(AdapterRecovery, ALossBehindTheHeadInTheMiddleOfAPrefillIsMended) {
  const auto tokens = some_tokens(300);
  LocalPipeline cached = pipeline();
  Client other = client_of(1);
  for (const int slice : {1, 2, 3}) {
    const ContextKey key = key_of("a", static_cast<std::uint64_t>(slice));
    Advance advance;
    {
      int appends = 0;
      AtFaultPoint at(
          "step.before-append",
          [&] {
            // The middle one of three shards: its context is released under its hands.
            if (++appends != 3 * (slice - 1) + 2) return;
            ASSERT_TRUE(other.release(key.session, key.epoch));
          },
          /*every_time=*/true);
      advance = cached.advance(key, tokens, 0);
    }
    expect_token_of_whole_model(cached, advance, tokens);
    ASSERT_TRUE(advance.why);
    EXPECT_EQ(advance.why->reason, MissReason::released) << advance.why->message();
    EXPECT_EQ(advance.reused.value(), 0u);
    EXPECT_EQ(advance.recomputed.value(), std::min(128 * slice, 300)) << "what the head had run";
  }
}

// A lease that outlived its context: the router died, the context was released, and another pair of
// workers began anew under the same key.
TEST_F(AdapterRecovery, ALeaseOfWhatWasThereBeforeIsGivenUp) {
  const ContextKey key = key_of("a");
  const auto tokens = some_tokens(60);
  LocalPipeline first = pipeline();
  ASSERT_TRUE(first.advance(key, some_tokens(30), 0).token);
  for (std::size_t i = 0; i < kRanges.size(); ++i) {
    ASSERT_TRUE(client_of(i).release(key.session, key.epoch));
  }
  run_and_give_back(key, tokens);
  auto shorter = tokens;
  shorter.resize(50);
  const Advance advance = first.advance(key, shorter, 40);
  expect_token_of_whole_model(first, advance, shorter);
}

// Contexts that are lost as fast as they are computed: it gives up, with the reason.
TEST_F(AdapterRecovery, EndlessLossesAreRefusedInTheEnd) {
  class LosingLink final : public adapter::ShardLink {
   public:
    std::expected<void, Error> reach() override { return {}; }
    std::vector<adapter::ShardResult> run(std::span<const ShardInput> batch) override {
      ++calls;
      const CacheMiss miss{batch.front().key.session,
                           batch.front().key.epoch,
                           {},
                           MissReason::evicted_lru,
                           {},
                           {},
                           {},
                           {}};
      return std::vector<adapter::ShardResult>(
          batch.size(), std::unexpected(adapter::ShardRefusal(Refusal(miss))));
    }
    std::expected<void, Refusal> give_back(std::span<const ContextKey>) override { return {}; }
    int calls = 0;
  };
  LocalPipeline cached = pipeline();
  LosingLink losing;
  adapter::PipelineStage stage(cached.adapter(0), &losing);
  adapter::HeadDriver driver(cached.adapter(0), stage);
  const std::vector<AdvanceRequest> request{{key_of("a"), some_tokens(20)}};
  const Advance advance = driver.advance(request).front();
  ASSERT_TRUE(advance.refusal);
  EXPECT_TRUE(advance.refusal->is(MissReason::evicted_lru));
  EXPECT_EQ(losing.calls, 1 + adapter::HeadDriver::kResumptionsMax);
  EXPECT_EQ(advance.recomputed.value(), 20u * adapter::HeadDriver::kResumptionsMax);
}

TEST_F(AdapterRecovery, LeasesDoNotPileUp) {
  LocalPipeline first(daemon.control_path(), weights, {{0, 5}});
  const std::size_t sessions = adapter::BoundaryAdapter::kHeldMax + 10;
  for (std::size_t i = 0; i < sessions; i += 2) {
    const std::vector<AdvanceRequest> batch{{key_of("session-" + std::to_string(i)), {7}},
                                            {key_of("session-" + std::to_string(i + 1)), {8}}};
    for (const Advance& advance : first.advance(batch)) ASSERT_TRUE(advance.token);
  }
  ClientOptions options;
  options.socket_path = daemon.control_path();
  Client other = Client::attach(options, first.adapter(0).client().recipe()).value();
  // The oldest were let go; their contexts are still there.
  const auto oldest = other.open(SessionId::from("session-0").value(), Epoch{1});
  ASSERT_TRUE(oldest) << oldest.error().message();
  EXPECT_EQ(oldest->length(), TokenCount{1});
  const auto newest =
      other.open(key_of("session-" + std::to_string(sessions - 1)).session, Epoch{1});
  ASSERT_FALSE(newest);
  EXPECT_TRUE(newest.error().is(ErrorCode::session_busy));
}

// Between the look at what is cached and the lease, the context is rolled back and filled with
// other tokens of the same number. Lengths alone do not show that.
TEST_F(AdapterRecovery, TokensThatAreReplacedBetweenTheLookAndTheLeaseAreSeen) {
  const ContextKey key = key_of("a");
  const auto old_tokens = some_tokens(64, 1);
  run_and_give_back(key, old_tokens);
  const auto new_tokens = some_tokens(64, 2);
  auto next_tokens = new_tokens;
  next_tokens.push_back(7);
  LocalPipeline late = pipeline();
  Advance advance;
  {
    AtFaultPoint at("step.before-open", [&] {
      fault_handler = nullptr;  // what follows opens, too
      run_and_give_back(key, new_tokens);
    });
    advance = late.advance(key, next_tokens, 64);
  }
  expect_token_of_whole_model(late, advance, next_tokens);
}

TEST_F(AdapterRecovery, AnotherPipelineWaitsForTheLeases) {
  const ContextKey key = key_of("a");
  auto tokens = some_tokens(20);
  LocalPipeline first = pipeline();
  ASSERT_TRUE(first.advance(key, tokens, 0).token);
  LocalPipeline second = pipeline();
  tokens.push_back(3);
  const Advance busy = second.advance(key, tokens, 20);
  ASSERT_TRUE(busy.refusal);
  EXPECT_TRUE(busy.refusal->is(ErrorCode::session_busy)) << busy.refusal->message();
  EXPECT_EQ(busy.cached.value(), 20u);
  ASSERT_TRUE(first.give_back(key));
  expect_token_of_whole_model(second, second.advance(key, tokens, 20), tokens);
}

TEST_F(AdapterRecovery, OneLossInABatchTouchesNoOtherSequence) {
  LocalPipeline cached = pipeline();
  std::vector<AdvanceRequest> batch;
  for (std::uint32_t i = 0; i < 5; ++i) {
    batch.push_back({key_of("session-" + std::to_string(i)), some_tokens(30 + i, i)});
  }
  for (auto& advance : cached.advance(batch)) ASSERT_TRUE(advance.token);
  for (auto& request : batch) {
    request.expected = TokenCount{static_cast<std::uint32_t>(request.tokens.size())};
    request.tokens.push_back(11);
  }
  ASSERT_TRUE(client_of(1).release(batch[3].key.session, Epoch{1}));
  ASSERT_TRUE(client_of(2).open(batch[4].key.session, Epoch{2}));
  const auto results = cached.advance(batch);
  for (std::uint32_t i = 0; i < 5; ++i) {
    if (i == 4) {
      ASSERT_TRUE(results[i].refusal);
      EXPECT_TRUE(results[i].refusal->is(MissReason::superseded_epoch));
      continue;
    }
    ASSERT_TRUE(results[i].token) << results[i].refusal->message();
    EXPECT_EQ(*results[i].token,
              adapter::SamplingContract::greedy().choose(whole.logits(batch[i].tokens)))
        << i;
    EXPECT_EQ(results[i].reused.value(), i == 3 ? 0u : 30u + i);
  }
}

TEST_F(AdapterRecovery, ManyPrefillsShareTheTokensOfAStep) {
  LocalPipeline cached = pipeline();
  std::vector<AdvanceRequest> batch;
  for (std::uint32_t i = 0; i < 40; ++i) {
    batch.push_back({key_of("session-" + std::to_string(i)), some_tokens(20 + i % 3, i)});
  }
  const auto results = cached.advance(batch);
  for (std::uint32_t i = 0; i < 40; ++i) {
    ASSERT_TRUE(results[i].token) << results[i].refusal->message();
    EXPECT_EQ(*results[i].token,
              adapter::SamplingContract::greedy().choose(whole.logits(batch[i].tokens)));
  }
  EXPECT_EQ(cached.shard(0).batch_sizes.front(), 40u);
  EXPECT_EQ(std::ranges::max(cached.shard(0).tokens_run), 40u * 3) << "128 tokens for 40 sequences";
}

TEST_F(AdapterRecovery, WithoutTheDaemonNothingIsComputedAndTheReasonIsSaid) {
  LocalPipeline cached = pipeline();
  const auto tokens = some_tokens(20);
  ASSERT_TRUE(cached.advance(key_of("a"), tokens, 0).token);
  const auto run = cached.shard(0).tokens_run;
  EXPECT_EQ(broken_invariant(daemon), "");
  ASSERT_EQ(daemon.stop(), 0) << daemon.err();
  ASSERT_TRUE(eventually([&] { return !cached.adapter(0).client().is_connected(); }));
  for (const std::uint32_t expected : {20u, 0u}) {
    const Advance advance = cached.advance(key_of("a"), tokens, expected);
    ASSERT_TRUE(advance.refusal);
    EXPECT_TRUE(advance.refusal->is(MissReason::daemon_unavailable)) << advance.refusal->message();
    EXPECT_EQ(advance.cached.value(), expected == 0 ? 0u : 19u) << "nothing else is known";
  }
  EXPECT_EQ(cached.shard(0).tokens_run, run);
}

TEST_F(AdapterRecovery, InputThatDoesNotFitIsRefusedByName) {
  LocalPipeline cached = pipeline();
  adapter::BoundaryAdapter& head = cached.adapter(0);
  adapter::BoundaryAdapter& tail = cached.adapter(2);
  const ContextKey key = key_of("a");
  const auto refusal = [&](adapter::BoundaryAdapter& adapter, std::vector<ShardInput> batch) {
    const auto results = adapter.run(batch);
    EXPECT_FALSE(results.back());
    EXPECT_TRUE(results.back().error().is(ErrorCode::invalid_argument));
    return results.back().error().message();
  };
  const auto says = [](const std::string& text) { return ::testing::HasSubstr(text); };
  const std::vector<float> row(32);
  EXPECT_THAT(refusal(head, {{key, {}, {1}, row, {}}}), says("the head takes tokens"));
  EXPECT_THAT(refusal(tail, {{key, {}, {1}, {}, {}}}), says("only the head takes tokens"));
  EXPECT_THAT(refusal(tail, {{key, {}, {}, std::vector<float>(33), {}}}), says("no multiple"));
  EXPECT_THAT(refusal(head, {{key, {}, {}, {}, {}}}), says("no token"));
  EXPECT_THAT(refusal(head, {{key, {}, {300}, {}, {}}}), says("token 300 is not below 300"));
  EXPECT_THAT(refusal(head, {{key, TokenCount{400}, {1}, {}, {}}}), says("context of 400"));
  EXPECT_THAT(refusal(head, {{key, {}, {1}, {}, {}}, {key, {}, {1}, {}, {}}}), says("twice"));
  std::vector<ShardInput> too_many;
  for (std::uint64_t epoch = 1; epoch <= 257; ++epoch) {
    too_many.push_back({key_of("many", epoch), {}, {1}, {}, {}});
  }
  EXPECT_THAT(refusal(head, too_many), says("at most 256"));
  EXPECT_TRUE(cached.advance(key, {}, 0).refusal->is(ErrorCode::invalid_argument));
}

}  // namespace
}  // namespace hotkv::testing
