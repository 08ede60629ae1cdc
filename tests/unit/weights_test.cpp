#include "client/adapter/llama/weights.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <fstream>
#include <string>

#include "client/adapter/llama/llama_shard.hpp"
#include "tests/support/daemon_process.hpp"

namespace hotkv::llama {
namespace {

using adapter::ModelConfig;
using ::testing::HasSubstr;

// dim 8, hidden 12, 2 layers, 2 heads, 1 kv head, 10 tokens, context 16
constexpr std::array<std::int32_t, 7> kHeader{8, 12, 2, 2, 1, 10, 16};
// Embedding, then per layer: norm, wq, wk, wv, wo, norm, w1, w2, w3; final norm, rotations.
constexpr std::size_t kParameters =
    80 + 2 * (8 + 64 + 32 + 32 + 64 + 8 + 96 + 96 + 96) + 8 + 16 * 4;

class Checkpoint : public ::testing::Test {
 protected:
  // A file of this header and as many parameters, each its own index.
  std::filesystem::path write(std::array<std::int32_t, 7> header, std::size_t parameters,
                              std::size_t stray_bytes = 0) {
    const auto path = folder.path() / "model.bin";
    std::ofstream file(path, std::ios::binary | std::ios::trunc);
    file.write(reinterpret_cast<const char*>(header.data()), sizeof header);
    for (std::size_t i = 0; i < parameters; ++i) {
      const auto value = static_cast<float>(i);
      file.write(reinterpret_cast<const char*>(&value), sizeof value);
    }
    file << std::string(stray_bytes, 'x');
    return path;
  }
  std::string refusal(std::array<std::int32_t, 7> header, std::size_t parameters,
                      std::size_t stray_bytes = 0) {
    const auto weights = Weights::from_checkpoint(write(header, parameters, stray_bytes));
    return weights ? "accepted" : weights.error().message();
  }
  testing::TemporaryDirectory folder;
};

TEST_F(Checkpoint, TensorsLieInTheOrderOfTheFormat) {
  const auto weights = Weights::from_checkpoint(write(kHeader, kParameters));
  ASSERT_TRUE(weights) << weights.error().message();
  EXPECT_EQ(weights->config().dim, 8u);
  EXPECT_EQ(weights->config().kv_heads, 1u);
  EXPECT_EQ(weights->embedding().size(), 80u);
  EXPECT_EQ(weights->layer(0).attention_norm.front(), 80.0f);
  EXPECT_EQ(weights->layer(1).attention_norm.front(), 88.0f) << "a kind of tensor, all layers";
  EXPECT_EQ(weights->layer(0).wq.front(), 96.0f);
  EXPECT_EQ(weights->layer(1).wk.front(), 96.0f + 2 * 64 + 32);
  EXPECT_EQ(weights->layer(1).w3.size(), 96u);
  EXPECT_EQ(weights->layer(1).w3.back() + 1, weights->final_norm().front());
  EXPECT_EQ(weights->output().data(), weights->embedding().data()) << "tied";
  EXPECT_THAT(weights->config().model_id, ::testing::MatchesRegex("model-[0-9a-f]{16}"));
}

TEST_F(Checkpoint, ANegativeVocabularyMeansAnOutputOfItsOwn) {
  auto header = kHeader;
  header[5] = -10;
  const auto weights = Weights::from_checkpoint(write(header, kParameters + 80));
  ASSERT_TRUE(weights) << weights.error().message();
  EXPECT_EQ(weights->config().vocab_size, 10u);
  EXPECT_EQ(weights->output().front(), static_cast<float>(kParameters));
}

TEST_F(Checkpoint, WhatDoesNotFitIsRefusedWithBothSizes) {
  EXPECT_THAT(refusal(kHeader, kParameters - 1),
              HasSubstr("ask for " + std::to_string(kParameters) + " parameters, it has " +
                        std::to_string(kParameters - 1)));
  EXPECT_THAT(refusal(kHeader, kParameters + 1), HasSubstr("parameters, it has"));
  EXPECT_THAT(refusal(kHeader, 0), HasSubstr("it has 0"));
  EXPECT_THAT(refusal(kHeader, kParameters, 2), HasSubstr("no checkpoint of version 0"));
  for (std::size_t field = 0; field < kHeader.size(); ++field) {
    for (const std::int32_t wrong : {0, -1, 2147483647, -2147483647 - 1}) {
      auto header = kHeader;
      header[field] = wrong;
      EXPECT_THAT(refusal(header, kParameters), Not(HasSubstr("accepted"))) << field << wrong;
    }
  }
}

TEST_F(Checkpoint, AFileThatIsNoneIsRefusedByItsPath) {
  const auto missing = Weights::from_checkpoint(folder.path() / "nothing.bin");
  ASSERT_FALSE(missing);
  EXPECT_EQ(missing.error().code, ErrorCode::system_error);
  EXPECT_THAT(missing.error().message(), HasSubstr("nothing.bin"));
  std::ofstream(folder.path() / "empty.bin");
  EXPECT_FALSE(Weights::from_checkpoint(folder.path() / "empty.bin"));
  std::ofstream(folder.path() / "short.bin") << "short";
  EXPECT_FALSE(Weights::from_checkpoint(folder.path() / "short.bin"));
  EXPECT_FALSE(Weights::from_checkpoint(folder.path()));
}

TEST_F(Checkpoint, TheModelIdTellsContentsApart) {
  const auto one = Weights::from_checkpoint(write(kHeader, kParameters)).value();
  const std::string id = one.config().model_id;
  {
    std::fstream file(folder.path() / "model.bin", std::ios::binary | std::ios::in | std::ios::out);
    file.seekp(1000);
    file.put('!');
  }
  const auto other = Weights::from_checkpoint(folder.path() / "model.bin").value();
  EXPECT_NE(other.config().model_id, id);
}

ModelConfig seeded_config() {
  ModelConfig config;
  config.dim = 8;
  config.hidden_dim = 12;
  config.layers = 2;
  config.heads = 2;
  config.kv_heads = 1;
  config.vocab_size = 10;
  config.context_tokens_max = 16;
  return config;
}

TEST(SeededWeights, AreAFunctionOfConfigAndSeed) {
  const auto one = Weights::from_seed(seeded_config(), 7).value();
  const auto same = Weights::from_seed(seeded_config(), 7).value();
  const auto other = Weights::from_seed(seeded_config(), 8).value();
  EXPECT_TRUE(std::ranges::equal(one.layer(1).wq, same.layer(1).wq));
  EXPECT_FALSE(std::ranges::equal(one.layer(1).wq, other.layer(1).wq));
  EXPECT_FALSE(std::ranges::equal(one.layer(0).wq, one.layer(1).wq));
  EXPECT_NE(one.output().data(), one.embedding().data());
  EXPECT_EQ(one.config().model_id, same.config().model_id);
  EXPECT_NE(one.config().model_id, other.config().model_id);
  // The same on every machine: a literal value.
  EXPECT_EQ(one.embedding()[0], -0x1.c341fp-3f) << std::hexfloat << one.embedding()[0];
}

TEST(SeededWeights, EveryFieldThatChangesTheNumbersChangesTheModelId) {
  const std::string id = Weights::from_seed(seeded_config(), 7)->config().model_id;
  auto config = seeded_config();
  config.rope_base = 500000;
  EXPECT_NE(Weights::from_seed(config, 7)->config().model_id, id);
  config = seeded_config();
  config.norm_epsilon = 1e-6f;
  EXPECT_NE(Weights::from_seed(config, 7)->config().model_id, id);
  config = seeded_config();
  config.dim = 7;
  EXPECT_FALSE(Weights::from_seed(config, 7));
}

TEST(LlamaShard, RefusesADTypeItCannotComputeWith) {
  const auto weights = Weights::from_seed(seeded_config(), 7).value();
  EXPECT_TRUE(LlamaShard::make(weights, {0, 1}, DType::bf16));
  const auto refused = LlamaShard::make(weights, {0, 1}, DType::i8);
  ASSERT_FALSE(refused);
  EXPECT_THAT(refused.error().message(), HasSubstr("f32, f16 or bf16"));
  EXPECT_FALSE(LlamaShard::make(weights, {1, 2}, DType::f32));
}

}  // namespace
}  // namespace hotkv::llama
