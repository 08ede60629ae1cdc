#pragma once
// The parameters of a dense Llama, read from a checkpoint in place or made from a seed.

#include <cstdint>
#include <expected>
#include <filesystem>
#include <memory>
#include <span>
#include <vector>

#include <hotkv/error.hpp>

#include "client/adapter/model_config.hpp"

namespace hotkv::llama {

// Matrices are [out][in], row by row.
struct LayerWeights {
  std::span<const float> attention_norm;  // [dim]
  std::span<const float> wq;              // [dim][dim]
  std::span<const float> wk;              // [kv_dim][dim]
  std::span<const float> wv;              // [kv_dim][dim]
  std::span<const float> wo;              // [dim][dim]
  std::span<const float> ffn_norm;        // [dim]
  std::span<const float> w1;              // [hidden_dim][dim]: the gate
  std::span<const float> w2;              // [dim][hidden_dim]: down
  std::span<const float> w3;              // [hidden_dim][dim]: up
};

// Immutable, cheap to copy: copies share the parameters.
class Weights {
 public:
  // A llama2.c checkpoint of version 0: seven int32 {dim, hidden_dim, layers, heads, kv_heads,
  // vocab, context}, a negative vocab meaning an output matrix of its own, then f32 tensors. The
  // file is mapped, so that all shards of a machine share one copy; it must not change while it is
  // used. The model id is the file's name and a digest of its content. Errors: system_error
  // (naming path and call); invalid_argument for a file that is none, with the field, or the
  // expected and the actual size.
  [[nodiscard]] static std::expected<Weights, Error> from_checkpoint(
      const std::filesystem::path& path);
  // Parameters that are a function of config and seed, of sizes that keep activations near 1. The
  // output matrix is not the embedding's, so greedy decoding does not just repeat its input.
  // `config.model_id` is replaced by one that names seed and sizes.
  // Errors: invalid_argument, from config.check().
  [[nodiscard]] static std::expected<Weights, Error> from_seed(adapter::ModelConfig config,
                                                               std::uint64_t seed);

  [[nodiscard]] const adapter::ModelConfig& config() const { return config_; }
  [[nodiscard]] std::span<const float> embedding() const { return embedding_; }    // [vocab][dim]
  [[nodiscard]] std::span<const float> final_norm() const { return final_norm_; }  // [dim]
  [[nodiscard]] std::span<const float> output() const { return output_; }          // [vocab][dim]
  // Of one of config().layers.
  [[nodiscard]] const LayerWeights& layer(std::uint32_t layer) const { return layers_[layer]; }

 private:
  Weights() = default;
  // Cuts `parameters` into tensors, in a checkpoint's order. Errors: invalid_argument, by size.
  [[nodiscard]] std::expected<void, Error> slice(std::span<const float> parameters,
                                                 bool has_own_output);

  adapter::ModelConfig config_;
  std::shared_ptr<const void> memory_;  // what the spans point into
  std::span<const float> embedding_;
  std::span<const float> final_norm_;
  std::span<const float> output_;
  std::vector<LayerWeights> layers_;
};

}  // namespace hotkv::llama
