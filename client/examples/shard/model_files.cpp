#include "client/examples/shard/model_files.hpp"

#include <charconv>
#include <filesystem>
#include <string_view>

namespace hotkv::shard {
namespace {

constexpr std::string_view kSeedPrefix = "seed:";

// As large as the tiny trained model, with a layer more: two shards of three.
adapter::ModelConfig seeded_config() {
  adapter::ModelConfig config;
  config.dim = 64;
  config.hidden_dim = 172;
  config.layers = 6;
  config.heads = 8;
  config.kv_heads = 4;
  config.vocab_size = 512;
  config.context_tokens_max = 512;
  return config;
}

}  // namespace

std::expected<llama::Weights, Error> load_weights(const std::string& model) {
  if (!model.starts_with(kSeedPrefix)) return llama::Weights::from_checkpoint(model);
  const std::string_view digits = std::string_view(model).substr(kSeedPrefix.size());
  std::uint64_t seed = 0;
  const auto [end, code] = std::from_chars(digits.begin(), digits.end(), seed);
  if (code != std::errc() || end != digits.end()) {
    return std::unexpected(Error{ErrorCode::invalid_argument, "load model", model,
                                 "a seed is a number below 2^64, as in seed:3"});
  }
  return llama::Weights::from_seed(seeded_config(), seed);
}

std::expected<llama::Tokenizer, Error> load_tokenizer(const std::string& tokenizer,
                                                      const std::string& model,
                                                      std::uint32_t vocab_size) {
  if (!tokenizer.empty()) return llama::Tokenizer::from_file(tokenizer, vocab_size);
  if (model.starts_with(kSeedPrefix)) return llama::Tokenizer::numbered(vocab_size);
  const auto beside =
      std::filesystem::path(model).parent_path() / ("tok" + std::to_string(vocab_size) + ".bin");
  return llama::Tokenizer::from_file(beside, vocab_size);
}

}  // namespace hotkv::shard
