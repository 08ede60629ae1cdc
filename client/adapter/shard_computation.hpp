#pragma once
// The arithmetic of one shard of a model: the part that a runtime brings along.

#include <span>

#include <hotkv/recipe.hpp>

#include "client/adapter/model_config.hpp"
#include "client/adapter/sampling_contract.hpp"
#include "client/adapter/step_kv.hpp"

namespace hotkv::adapter {

// One sequence's part in a step of run_layers.
struct SequenceStep {
  // [kv.fresh()][dim]: in, what the layer before the first owned one emitted; out, what the last
  // owned one emits. Never normalised at either end.
  std::span<float> residual;
  // The first fresh token has absolute position kv.past().
  StepKv kv;
};

// A shard owns layers [first, last]. The first shard of a model (the head) also embeds, the last
// (the tail) also normalises, computes logits and samples. It knows no session, no socket and no
// lease, only where rows lie; BoundaryAdapter brings it together with hotkv.
//
// Used by one thread at a time. A result must not depend on what else is in the batch, nor on how
// tokens were cut into steps; only then is KV the same whoever computed it, and when.
class ShardComputation {
 public:
  virtual ~ShardComputation() = default;

  [[nodiscard]] virtual const ModelConfig& config() const = 0;
  [[nodiscard]] virtual LayerRange layers() const = 0;
  // The element type in which it reads and fills K and V.
  [[nodiscard]] virtual DType kv_dtype() const = 0;
  [[nodiscard]] bool is_head() const { return layers().first == 0; }
  [[nodiscard]] bool is_tail() const { return layers().last + 1 == config().layers; }

  // Head only. Fills residual [tokens][dim] for token ids below vocab_size.
  virtual void embed(std::span<const TokenId> tokens, std::span<float> residual) = 0;
  // Runs the owned layers: fills K and V of every fresh token in every owned layer, and attends
  // from each to all positions up to its own. Positions are below context_tokens_max.
  virtual void run_layers(std::span<SequenceStep> batch) = 0;
  // Tail only. Normalises one token's residual [dim] in place.
  virtual void final_norm(std::span<float> residual) = 0;
  // Tail only. Logits [vocab_size] of one normalised residual [dim].
  virtual void output_head(std::span<const float> normalised, std::span<float> logits) = 0;
  // Tail only.
  [[nodiscard]] virtual TokenId sample(const SamplingContract& contract,
                                       std::span<const float> logits) = 0;
};

}  // namespace hotkv::adapter
