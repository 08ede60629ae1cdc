#include "client/adapter/llama/stateless_llama.hpp"

#include <algorithm>
#include <cmath>
#include <limits>
#include <utility>

#include "client/adapter/llama/element.hpp"

namespace hotkv::llama {
namespace {

using adapter::TokenId;

// [tokens][columns]
struct Table {
  Table(std::size_t tokens, std::size_t columns_in)
      : columns(columns_in), values(tokens * columns_in) {}
  std::span<float> row(std::size_t token) {
    return std::span(values).subspan(token * columns, columns);
  }
  std::size_t columns;
  std::vector<float> values;
};

void round_to(DType dtype, std::span<float> values) {
  std::vector<std::byte> row(values.size() * dtype_traits(dtype)->block_bytes);
  encode_row(dtype, values, row);
  decode_row(dtype, row, values);
}

}  // namespace

StatelessLlama::StatelessLlama(Weights weights, DType kv_dtype)
    : weights_(std::move(weights)),
      kv_dtype_(kv_dtype),
      rope_(weights_.config().head_dim(), weights_.config().context_tokens_max,
            weights_.config().rope_base) {}

void StatelessLlama::run_layer(const LayerWeights& layer, std::vector<float>& residual) const {
  const adapter::ModelConfig& model = weights_.config();
  const std::size_t tokens = residual.size() / model.dim;
  const std::size_t head_dim = model.head_dim();
  Table queries(tokens, model.dim), keys(tokens, model.kv_dim()), values(tokens, model.kv_dim());
  std::vector<float> normalised(model.dim), attended(model.dim), projected(model.dim);
  const auto row = [&](std::size_t token) {
    return std::span(residual).subspan(token * model.dim, model.dim);
  };
  for (std::size_t token = 0; token < tokens; ++token) {
    rms_norm(row(token), layer.attention_norm, model.norm_epsilon, normalised);
    multiply(layer.wq, normalised, queries.row(token));
    multiply(layer.wk, normalised, keys.row(token));
    multiply(layer.wv, normalised, values.row(token));
    rope_.rotate(queries.row(token), static_cast<std::uint32_t>(token));
    rope_.rotate(keys.row(token), static_cast<std::uint32_t>(token));
    round_to(kv_dtype_, keys.row(token));
    round_to(kv_dtype_, values.row(token));
  }
  for (std::size_t token = 0; token < tokens; ++token) {
    for (std::size_t head = 0; head < model.heads; ++head) {
      const std::size_t kv_offset = head * model.kv_heads / model.heads * head_dim;
      // All positions, the future ones masked: e^-inf is 0, and adding 0 changes nothing.
      std::vector<float> scores(tokens, -std::numeric_limits<float>::infinity());
      for (std::size_t seen = 0; seen <= token; ++seen) {
        scores[seen] = dot(queries.row(token).subspan(head * head_dim, head_dim),
                           keys.row(seen).subspan(kv_offset, head_dim)) *
                       (1.0f / std::sqrt(static_cast<float>(head_dim)));
      }
      softmax(scores);
      for (std::size_t d = 0; d < head_dim; ++d) {
        float sum = 0;
        for (std::size_t seen = 0; seen < tokens; ++seen) {
          sum += scores[seen] * values.row(seen)[kv_offset + d];
        }
        attended[head * head_dim + d] = sum;
      }
    }
    multiply(layer.wo, attended, projected);
    add(projected, row(token));
  }
  std::vector<float> gate(model.hidden_dim), up(model.hidden_dim);
  for (std::size_t token = 0; token < tokens; ++token) {
    rms_norm(row(token), layer.ffn_norm, model.norm_epsilon, normalised);
    multiply(layer.w1, normalised, gate);
    multiply(layer.w3, normalised, up);
    swiglu(gate, up);
    multiply(layer.w2, gate, projected);
    add(projected, row(token));
  }
}

std::vector<float> StatelessLlama::residual(std::span<const TokenId> tokens,
                                            std::uint32_t last_layer) const {
  const std::size_t dim = weights_.config().dim;
  std::vector<float> residual;
  for (const TokenId token : tokens) {
    const auto embedded = weights_.embedding().subspan(token * dim, dim);
    residual.insert(residual.end(), embedded.begin(), embedded.end());
  }
  for (std::uint32_t layer = 0; layer <= last_layer; ++layer) {
    run_layer(weights_.layer(layer), residual);
  }
  return residual;
}

std::vector<float> StatelessLlama::logits(std::span<const TokenId> tokens) const {
  const adapter::ModelConfig& model = weights_.config();
  std::vector<float> all = residual(tokens, model.layers - 1);
  const auto last = std::span(all).last(model.dim);
  rms_norm(last, weights_.final_norm(), model.norm_epsilon, last);
  std::vector<float> logits(model.vocab_size);
  multiply(weights_.output(), last, logits);
  return logits;
}

std::vector<TokenId> StatelessLlama::greedy(std::vector<TokenId> tokens, std::size_t count) const {
  std::vector<TokenId> chosen;
  for (std::size_t i = 0; i < count; ++i) {
    chosen.push_back(adapter::SamplingContract::greedy().choose(logits(tokens)));
    tokens.push_back(chosen.back());
  }
  return chosen;
}

}  // namespace hotkv::llama
