// What the adapter takes before any daemon is asked: model, sampling, rows.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <functional>
#include <vector>

#include "client/adapter/model_config.hpp"
#include "client/adapter/sampling_contract.hpp"
#include "client/adapter/step_kv.hpp"

namespace hotkv::adapter {
namespace {

using ::testing::HasSubstr;

ModelConfig good_config() {
  ModelConfig config;
  config.model_id = "m";
  config.dim = 64;
  config.hidden_dim = 172;
  config.layers = 6;
  config.heads = 8;
  config.kv_heads = 4;
  config.vocab_size = 512;
  config.context_tokens_max = 512;
  return config;
}

TEST(ModelConfig, RecipeHasTheKvOfTheOwnedLayers) {
  const auto recipe = recipe_for(good_config(), {3, 5}, DType::bf16).value();
  const RecipeFields& fields = recipe.fields();
  EXPECT_EQ(fields.architecture, "llama");
  EXPECT_EQ(fields.model_id, "m");
  EXPECT_EQ(fields.dtype, DType::bf16);
  EXPECT_EQ(fields.kv_heads, 4u);
  EXPECT_EQ(fields.key_dim, 8u);
  EXPECT_EQ(fields.value_dim, 8u);
  EXPECT_EQ(fields.layers, (LayerRange{3, 5}));
  EXPECT_EQ(recipe.bytes_per_token(), 3u * 4 * (8 + 8) * 2);
}

TEST(ModelConfig, RefusesLayersThatTheModelHasNot) {
  for (const LayerRange layers : {LayerRange{0, 6}, LayerRange{6, 6}, LayerRange{3, 2}}) {
    const auto recipe = recipe_for(good_config(), layers, DType::f32);
    ASSERT_FALSE(recipe);
    EXPECT_THAT(recipe.error().message(), HasSubstr("not among its 6"));
  }
}

TEST(ModelConfig, NamesTheFieldThatIsWrong) {
  const auto message = [](const std::function<void(ModelConfig&)>& spoil) {
    ModelConfig config = good_config();
    spoil(config);
    const auto sane = config.check();
    return sane ? std::string("accepted") : sane.error().message();
  };
  EXPECT_THAT(message([](auto& c) { c.dim = 0; }), HasSubstr("dim is 0"));
  EXPECT_THAT(message([](auto& c) { c.dim = ~0u; }), HasSubstr("dim is 4294967295"));
  EXPECT_THAT(message([](auto& c) { c.hidden_dim = 0; }), HasSubstr("hidden_dim"));
  EXPECT_THAT(message([](auto& c) { c.layers = 5000; }), HasSubstr("layers"));
  EXPECT_THAT(message([](auto& c) { c.heads = 0; }), HasSubstr("heads"));
  EXPECT_THAT(message([](auto& c) { c.heads = 7; }), HasSubstr("no multiple of 7 heads"));
  EXPECT_THAT(message([](auto& c) { c.kv_heads = 3; }), HasSubstr("no multiple of 3 kv_heads"));
  EXPECT_THAT(message([](auto& c) { c.heads = c.dim; }), HasSubstr("head dim 1 is odd"));
  EXPECT_THAT(message([](auto& c) { c.vocab_size = 0; }), HasSubstr("vocab_size"));
  EXPECT_THAT(message([](auto& c) { c.context_tokens_max = 0; }), HasSubstr("context_tokens_max"));
  EXPECT_EQ(message([](auto&) {}), "accepted");
}

TEST(SamplingContract, CertifiesGreedyAndNothingElse) {
  EXPECT_TRUE(SamplingContract::make({}));
  EXPECT_TRUE(SamplingContract::from_name("greedy"));
  for (const SamplingRequest& request :
       {SamplingRequest{.temperature = 0.7}, SamplingRequest{.temperature = -1},
        SamplingRequest{.temperature = std::nan("")}, SamplingRequest{.top_p = 0.9},
        SamplingRequest{.top_p = std::nan("")}, SamplingRequest{.top_k = 40}}) {
    const auto refused = SamplingContract::make(request);
    ASSERT_FALSE(refused);
    EXPECT_EQ(refused.error().code, ErrorCode::invalid_argument);
    EXPECT_THAT(refused.error().message(), HasSubstr("not certified; certified: greedy"));
  }
  EXPECT_FALSE(SamplingContract::from_name("Greedy"));
  EXPECT_FALSE(SamplingContract::from_name(""));
}

TEST(SamplingContract, ChoosesTheLowestOfTheLargest) {
  const auto greedy = SamplingContract::greedy();
  EXPECT_EQ(greedy.choose(std::vector<float>{1, 5, 3, 5}), 1u);
  EXPECT_EQ(greedy.choose(std::vector<float>{-3, -2, -5}), 1u);
  EXPECT_EQ(greedy.choose(std::vector<float>{NAN, -2, NAN}), 1u);
  EXPECT_EQ(greedy.choose(std::vector<float>{NAN, NAN}), 0u);
}

TEST(LayerKv, GivesRoomRowByRowOverPieces) {
  std::vector<std::byte> past(6), first(4), second(6);
  LayerKv kv;
  kv.add_past(3, past, past);
  kv.add_fresh(2, first, first);
  kv.add_fresh(3, second, second);
  ASSERT_EQ(kv.pieces().size(), 3u);
  EXPECT_EQ(kv.pieces()[0].tokens, 3u);
  EXPECT_EQ(kv.fresh_key(0).data(), first.data());
  EXPECT_EQ(kv.fresh_key(1).data(), first.data() + 2);
  EXPECT_EQ(kv.fresh_value(2).data(), second.data());
  EXPECT_EQ(kv.fresh_key(4).data(), second.data() + 4);
  EXPECT_EQ(kv.fresh_key(4).size(), 2u);
  // What is filled is what attention reads.
  kv.fresh_key(3)[0] = std::byte{9};
  EXPECT_EQ(kv.pieces()[2].keys[2], std::byte{9});
}

}  // namespace
}  // namespace hotkv::adapter
