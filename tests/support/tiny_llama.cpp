#include "tests/support/tiny_llama.hpp"

#include <stdexcept>

namespace hotkv::testing {

using adapter::Advance;
using adapter::AdvanceRequest;
using adapter::TokenId;

llama::Weights tiny_llama(std::uint64_t seed) {
  adapter::ModelConfig config;
  config.dim = 32;
  config.hidden_dim = 44;
  config.layers = 6;
  config.heads = 4;
  config.kv_heads = 2;
  config.vocab_size = 300;
  config.context_tokens_max = 400;
  return llama::Weights::from_seed(config, seed).value();
}

std::vector<TokenId> some_tokens(std::size_t count, std::uint32_t salt) {
  std::vector<TokenId> tokens;
  for (std::uint32_t i = 0; i < count; ++i) tokens.push_back((i * 37 + salt * 101 + 5) % 300);
  return tokens;
}

ContextKey key_of(std::string_view session, std::uint64_t epoch) {
  return {SessionId::from(session).value(), Epoch{epoch}};
}

LocalPipeline::LocalPipeline(const std::string& control_path, const llama::Weights& weights,
                             const std::vector<LayerRange>& ranges, std::vector<DType> dtypes) {
  ClientOptions options;
  options.socket_path = control_path;
  dtypes.resize(ranges.size(), dtypes.front());
  for (std::size_t i = 0; i < ranges.size(); ++i) {
    shards_.push_back(std::make_unique<RecordingShard>(weights, ranges[i], dtypes[i]));
    auto attached = adapter::BoundaryAdapter::attach(options, *shards_.back());
    if (!attached) throw std::runtime_error(attached.error().message());
    adapters_.push_back(std::make_unique<adapter::BoundaryAdapter>(std::move(*attached)));
  }
  adapter::ShardLink* next = nullptr;
  for (std::size_t i = ranges.size(); i-- > 0;) {
    stages_.insert(stages_.begin(), std::make_unique<adapter::PipelineStage>(*adapters_[i], next));
    next = stages_.front().get();
  }
}

std::vector<Advance> LocalPipeline::advance(std::span<const AdvanceRequest> requests) {
  return adapter::HeadDriver(*adapters_.front(), *stages_.front()).advance(requests);
}

Advance LocalPipeline::advance(const ContextKey& key, std::vector<TokenId> tokens,
                               std::uint32_t expected, bool is_sole) {
  const std::vector<AdvanceRequest> requests{
      {key, std::move(tokens), TokenCount{expected}, is_sole}};
  return advance(requests).front();
}

std::vector<TokenId> LocalPipeline::decode(const ContextKey& key, std::vector<TokenId> tokens,
                                           std::size_t count) {
  std::vector<TokenId> chosen;
  std::uint32_t cached = 0;
  while (chosen.size() < count) {
    const auto next = advance(key, tokens, cached);
    if (!next.token) return chosen;
    cached = next.cached.value();
    tokens.push_back(*next.token);
    chosen.push_back(*next.token);
  }
  return chosen;
}

std::expected<void, Refusal> LocalPipeline::give_back(const ContextKey& key) {
  return stages_.front()->give_back(std::span(&key, 1));
}

}  // namespace hotkv::testing
