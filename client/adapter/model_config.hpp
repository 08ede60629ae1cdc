#pragma once
// What a decoder-only model is, as far as its shards must agree.

#include <cstdint>
#include <expected>
#include <string>

#include <hotkv/error.hpp>
#include <hotkv/recipe.hpp>

namespace hotkv::adapter {

// A token of the model's vocabulary.
using TokenId = std::uint32_t;

struct ModelConfig {
  // Names weights and tokenizer (1 to 128 bytes). Two models of one id must have equal weights: KV
  // of one is read as KV of the other.
  std::string model_id;
  std::uint32_t dim = 0;         // of the residual; a multiple of `heads`
  std::uint32_t hidden_dim = 0;  // of the feed-forward part
  std::uint32_t layers = 0;
  std::uint32_t heads = 0;     // query heads; a multiple of `kv_heads`
  std::uint32_t kv_heads = 0;  // fewer than `heads`: grouped-query attention
  std::uint32_t vocab_size = 0;
  std::uint32_t context_tokens_max = 0;  // positions are in [0, context_tokens_max)
  float rope_base = 10000.0f;
  float norm_epsilon = 1e-5f;

  [[nodiscard]] std::uint32_t head_dim() const { return dim / heads; }
  // Elements of K (or V) of one token in one layer.
  [[nodiscard]] std::uint32_t kv_dim() const { return kv_heads * head_dim(); }
  [[nodiscard]] LayerRange all_layers() const { return {0, layers - 1}; }

  // Errors: invalid_argument naming the first field that is zero, too large, or does not divide.
  [[nodiscard]] std::expected<void, Error> check() const;
};

// The recipe of the KV that a shard with these layers keeps in `dtype`.
// Errors: invalid_argument (the config, or layers that the model has not), and Recipe::make's.
[[nodiscard]] std::expected<Recipe, Error> recipe_for(const ModelConfig& config, LayerRange layers,
                                                      DType dtype);

}  // namespace hotkv::adapter
