#include "client/adapter/llama/llama_shard.hpp"

#include <algorithm>
#include <cmath>
#include <utility>

#include "client/adapter/llama/element.hpp"

namespace hotkv::llama {

using adapter::LayerKv;
using adapter::ModelConfig;
using adapter::SamplingContract;
using adapter::SequenceStep;
using adapter::TokenId;

std::expected<LlamaShard, Error> LlamaShard::make(Weights weights, LayerRange layers,
                                                  DType kv_dtype) {
  const ModelConfig& config = weights.config();
  if (auto recipe = adapter::recipe_for(config, layers, kv_dtype); !recipe) {
    return std::unexpected(recipe.error());
  }
  if (!is_element_dtype(kv_dtype)) {
    return std::unexpected(Error{ErrorCode::invalid_argument, "make shard", config.model_id,
                                 "computes with KV in f32, f16 or bf16"});
  }
  return LlamaShard(std::move(weights), layers, kv_dtype);
}

LlamaShard::LlamaShard(Weights weights, LayerRange layers, DType kv_dtype)
    : weights_(std::move(weights)),
      layers_(layers),
      kv_dtype_(kv_dtype),
      rope_(config().head_dim(), config().context_tokens_max, config().rope_base),
      normalised_(config().dim),
      query_(config().dim),
      key_(config().kv_dim()),
      value_(config().kv_dim()),
      attended_(config().dim),
      projected_(config().dim),
      gate_(config().hidden_dim),
      up_(config().hidden_dim) {}

void LlamaShard::embed(std::span<const TokenId> tokens, std::span<float> residual) {
  const std::size_t dim = config().dim;
  for (std::size_t i = 0; i < tokens.size(); ++i) {
    std::ranges::copy(weights_.embedding().subspan(tokens[i] * dim, dim),
                      residual.subspan(i * dim, dim).begin());
  }
}

void LlamaShard::run_layers(std::span<SequenceStep> batch) {
  for (std::uint32_t layer = layers_.first; layer <= layers_.last; ++layer) {
    for (SequenceStep& sequence : batch) {
      attention(weights_.layer(layer), sequence, sequence.kv.layer(layer));
      feed_forward(weights_.layer(layer), sequence.residual);
    }
  }
}

void LlamaShard::attention(const LayerWeights& layer, SequenceStep& sequence, LayerKv& kv) {
  const ModelConfig& model = config();
  for (std::uint32_t i = 0; i < sequence.kv.fresh().value(); ++i) {
    const auto residual = sequence.residual.subspan(std::size_t{i} * model.dim, model.dim);
    const std::uint32_t position = sequence.kv.past().value() + i;
    rms_norm(residual, layer.attention_norm, model.norm_epsilon, normalised_);
    multiply(layer.wq, normalised_, query_);
    multiply(layer.wk, normalised_, key_);
    multiply(layer.wv, normalised_, value_);
    rope_.rotate(query_, position);
    rope_.rotate(key_, position);
    encode_row(kv_dtype_, key_, kv.fresh_key(i));
    encode_row(kv_dtype_, value_, kv.fresh_value(i));
    attend(kv, position + 1);  // the causal mask: positions up to its own
    multiply(layer.wo, attended_, projected_);
    add(projected_, residual);
  }
}

void LlamaShard::attend(const LayerKv& kv, std::uint32_t visible) {
  const ModelConfig& model = config();
  const std::size_t head_dim = model.head_dim();
  const std::size_t group = model.heads / model.kv_heads;  // query heads that share a KV head
  const float scale = 1.0f / std::sqrt(static_cast<float>(head_dim));
  scores_.resize(std::size_t{model.heads} * visible);

  std::uint32_t position = 0;
  for (const LayerKv::Piece& piece : kv.pieces()) {
    const std::size_t row_bytes = piece.keys.size() / piece.tokens;
    for (std::uint32_t i = 0; i < piece.tokens && position < visible; ++i, ++position) {
      const auto keys = row_as_f32(kv_dtype_, piece.keys.subspan(i * row_bytes, row_bytes), key_);
      for (std::size_t head = 0; head < model.heads; ++head) {
        const std::span query(query_.data() + head * head_dim, head_dim);
        const auto key = keys.subspan(head / group * head_dim, head_dim);
        scores_[head * visible + position] = dot(query, key) * scale;
      }
    }
  }
  for (std::size_t head = 0; head < model.heads; ++head) {
    softmax(std::span(scores_).subspan(head * visible, visible));
  }
  std::ranges::fill(attended_, 0.0f);
  position = 0;
  for (const LayerKv::Piece& piece : kv.pieces()) {
    const std::size_t row_bytes = piece.values.size() / piece.tokens;
    for (std::uint32_t i = 0; i < piece.tokens && position < visible; ++i, ++position) {
      const auto values =
          row_as_f32(kv_dtype_, piece.values.subspan(i * row_bytes, row_bytes), value_);
      for (std::size_t head = 0; head < model.heads; ++head) {
        const float weight = scores_[head * visible + position];
        const auto value = values.subspan(head / group * head_dim, head_dim);
        float* const out = attended_.data() + head * head_dim;
        for (std::size_t d = 0; d < head_dim; ++d) out[d] += weight * value[d];
      }
    }
  }
}

void LlamaShard::feed_forward(const LayerWeights& layer, std::span<float> residuals) {
  const ModelConfig& model = config();
  for (std::size_t at = 0; at < residuals.size(); at += model.dim) {
    const auto residual = residuals.subspan(at, model.dim);
    rms_norm(residual, layer.ffn_norm, model.norm_epsilon, normalised_);
    multiply(layer.w1, normalised_, gate_);
    multiply(layer.w3, normalised_, up_);
    swiglu(gate_, up_);
    multiply(layer.w2, gate_, projected_);
    add(projected_, residual);
  }
}

void LlamaShard::final_norm(std::span<float> residual) {
  rms_norm(residual, weights_.final_norm(), config().norm_epsilon, residual);
}

void LlamaShard::output_head(std::span<const float> normalised, std::span<float> logits) {
  multiply(weights_.output(), normalised, logits);
}

TokenId LlamaShard::sample(const SamplingContract& contract, std::span<const float> logits) {
  return contract.choose(logits);
}

}  // namespace hotkv::llama
