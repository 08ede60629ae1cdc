#pragma once
// A seeded Llama small enough to be computed again and again, and shards of it in this process.

#include <memory>
#include <string>
#include <vector>

#include "client/adapter/boundary_adapter.hpp"
#include "client/adapter/head_driver.hpp"
#include "client/adapter/llama/llama_shard.hpp"
#include "client/adapter/pipeline.hpp"

namespace hotkv::testing {

// 6 layers of dim 32 with 4 query heads over 2 KV heads of 8 elements: grouped queries, and a
// hidden dim that no lane count divides.
[[nodiscard]] llama::Weights tiny_llama(std::uint64_t seed = 1);

// Different for every `salt`; below the tiny model's vocabulary.
[[nodiscard]] std::vector<adapter::TokenId> some_tokens(std::size_t count, std::uint32_t salt = 0);

[[nodiscard]] ContextKey key_of(std::string_view session, std::uint64_t epoch = 1);

// A LlamaShard that remembers what it was asked and what it emitted.
class RecordingShard final : public adapter::ShardComputation {
 public:
  RecordingShard(const llama::Weights& weights, LayerRange layers, DType dtype)
      : shard_(llama::LlamaShard::make(weights, layers, dtype).value()) {}

  [[nodiscard]] const adapter::ModelConfig& config() const override { return shard_.config(); }
  [[nodiscard]] LayerRange layers() const override { return shard_.layers(); }
  [[nodiscard]] DType kv_dtype() const override { return shard_.kv_dtype(); }
  void embed(std::span<const adapter::TokenId> tokens, std::span<float> residual) override {
    shard_.embed(tokens, residual);
  }
  void run_layers(std::span<adapter::SequenceStep> batch) override {
    shard_.run_layers(batch);
    std::size_t tokens = 0;
    for (const auto& step : batch) {
      tokens += step.kv.fresh().value();
      last_residual.assign(step.residual.begin(), step.residual.end());
    }
    batch_sizes.push_back(batch.size());
    tokens_run.push_back(tokens);
  }
  void final_norm(std::span<float> residual) override { shard_.final_norm(residual); }
  void output_head(std::span<const float> normalised, std::span<float> logits) override {
    shard_.output_head(normalised, logits);
  }
  [[nodiscard]] adapter::TokenId sample(const adapter::SamplingContract& contract,
                                        std::span<const float> logits) override {
    sampled_logits.emplace_back(logits.begin(), logits.end());
    return shard_.sample(contract, logits);
  }

  std::vector<std::size_t> tokens_run;             // of each call of run_layers
  std::vector<std::size_t> batch_sizes;            // of each call of run_layers
  std::vector<float> last_residual;                // of the last sequence of the last call
  std::vector<std::vector<float>> sampled_logits;  // [call][vocab]

 private:
  llama::LlamaShard shard_;
};

// All shards of a model in one process, each with a client of its own, as workers would be.
class LocalPipeline {
 public:
  // `ranges` in order, together the whole model. `dtypes` of their KV; one for all, or one each.
  LocalPipeline(const std::string& control_path, const llama::Weights& weights,
                const std::vector<LayerRange>& ranges, std::vector<DType> dtypes = {DType::f32});

  [[nodiscard]] std::vector<adapter::Advance> advance(
      std::span<const adapter::AdvanceRequest> requests);
  [[nodiscard]] adapter::Advance advance(const ContextKey& key,
                                         std::vector<adapter::TokenId> tokens,
                                         std::uint32_t expected, bool is_sole = false);
  // `count` tokens after `tokens`, each sampled with what the steps before it left in the cache.
  // Stops at a refusal, and the result is shorter then.
  [[nodiscard]] std::vector<adapter::TokenId> decode(const ContextKey& key,
                                                     std::vector<adapter::TokenId> tokens,
                                                     std::size_t count);
  [[nodiscard]] std::expected<void, Refusal> give_back(const ContextKey& key);

  [[nodiscard]] RecordingShard& shard(std::size_t index) { return *shards_[index]; }
  [[nodiscard]] RecordingShard& tail() { return *shards_.back(); }
  [[nodiscard]] adapter::BoundaryAdapter& adapter(std::size_t index) { return *adapters_[index]; }
  // The shard and all behind it.
  [[nodiscard]] adapter::ShardLink& link(std::size_t index) { return *stages_[index]; }

 private:
  std::vector<std::unique_ptr<RecordingShard>> shards_;
  std::vector<std::unique_ptr<adapter::BoundaryAdapter>> adapters_;
  std::vector<std::unique_ptr<adapter::PipelineStage>> stages_;  // head first
};

}  // namespace hotkv::testing
