#pragma once
// The whole model without any cache: what every cached answer must equal.

#include <span>
#include <vector>

#include "client/adapter/llama/kernels.hpp"
#include "client/adapter/llama/weights.hpp"
#include "client/adapter/sampling_contract.hpp"

namespace hotkv::llama {

// Computes all positions of a sequence anew with each call, layer by layer, with plain arrays and a
// mask. It shares the kernels with LlamaShard, hence their order of additions, hence logits that
// are equal bit for bit to what a correct cache gives; it shares nothing of how rows are kept and
// found. K and V are rounded to `kv_dtype`, as a cache of that dtype rounds them.
class StatelessLlama {
 public:
  // `kv_dtype` is f32, f16 or bf16.
  StatelessLlama(Weights weights, DType kv_dtype);

  // Residual [tokens][dim] as layer `last_layer` emits it. Tokens are not empty.
  [[nodiscard]] std::vector<float> residual(std::span<const adapter::TokenId> tokens,
                                            std::uint32_t last_layer) const;
  // Logits [vocab] after the last of the tokens.
  [[nodiscard]] std::vector<float> logits(std::span<const adapter::TokenId> tokens) const;
  // `count` tokens, each the greedy choice after all before it.
  [[nodiscard]] std::vector<adapter::TokenId> greedy(std::vector<adapter::TokenId> tokens,
                                                     std::size_t count) const;

 private:
  void run_layer(const LayerWeights& layer, std::vector<float>& residual) const;

  Weights weights_;
  DType kv_dtype_;
  Rope rope_;
};

}  // namespace hotkv::llama
