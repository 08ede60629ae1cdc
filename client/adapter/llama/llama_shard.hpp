#pragma once
// A dense Llama as a ShardComputation: the smallest honest example of a runtime on hotkv.

#include <expected>
#include <vector>

#include "client/adapter/llama/kernels.hpp"
#include "client/adapter/llama/weights.hpp"
#include "client/adapter/shard_computation.hpp"

namespace hotkv::llama {

// Reads cached keys and values where they lie, row by row (f16 and bf16 through a scratch row), and
// fills new ones where they will be published. Rows are rounded to the KV dtype before their first
// use, so that a token attends to the same numbers in the step that computes them and in every
// later one.
class LlamaShard final : public adapter::ShardComputation {
 public:
  // Errors: invalid_argument for layers that the model has not, and a dtype other than f32, f16,
  // bf16.
  [[nodiscard]] static std::expected<LlamaShard, Error> make(Weights weights, LayerRange layers,
                                                             DType kv_dtype);

  [[nodiscard]] const adapter::ModelConfig& config() const override { return weights_.config(); }
  [[nodiscard]] LayerRange layers() const override { return layers_; }
  [[nodiscard]] DType kv_dtype() const override { return kv_dtype_; }
  void embed(std::span<const adapter::TokenId> tokens, std::span<float> residual) override;
  void run_layers(std::span<adapter::SequenceStep> batch) override;
  void final_norm(std::span<float> residual) override;
  void output_head(std::span<const float> normalised, std::span<float> logits) override;
  [[nodiscard]] adapter::TokenId sample(const adapter::SamplingContract& contract,
                                        std::span<const float> logits) override;

 private:
  LlamaShard(Weights weights, LayerRange layers, DType kv_dtype);
  // One layer over the fresh tokens of one sequence.
  void attention(const LayerWeights& layer, adapter::SequenceStep& sequence, adapter::LayerKv& kv);
  void feed_forward(const LayerWeights& layer, std::span<float> residual);
  // Softmax(q K^T / sqrt(head_dim)) V of one token over the first `visible` rows.
  void attend(const adapter::LayerKv& kv, std::uint32_t visible);

  Weights weights_;
  LayerRange layers_;
  DType kv_dtype_;
  Rope rope_;
  // Scratch of one token.
  std::vector<float> normalised_;  // [dim]
  std::vector<float> query_;       // [heads][head_dim]
  std::vector<float> key_;         // [kv_heads][head_dim]
  std::vector<float> value_;       // [kv_heads][head_dim]
  std::vector<float> attended_;    // [heads][head_dim]
  std::vector<float> projected_;   // [dim]
  std::vector<float> gate_;        // [hidden_dim]
  std::vector<float> up_;          // [hidden_dim]
  std::vector<float> scores_;      // [heads][visible]
};

}  // namespace hotkv::llama
