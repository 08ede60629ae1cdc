#include "client/adapter/model_config.hpp"

#include <array>
#include <string_view>

namespace hotkv::adapter {
namespace {

// Bounds on what a file may claim, so that no product of two fields and a layer count overflows.
constexpr std::uint32_t kDimMax = 1u << 16;
constexpr std::uint32_t kLayersMax = 4096;
constexpr std::uint32_t kVocabMax = 1u << 24;
constexpr std::uint32_t kContextMax = 1u << 24;

std::unexpected<Error> refused(const ModelConfig& config, std::string cause) {
  return std::unexpected(
      Error{ErrorCode::invalid_argument, "check model", config.model_id, std::move(cause)});
}

}  // namespace

std::expected<void, Error> ModelConfig::check() const {
  struct Bound {
    std::string_view name;
    std::uint32_t value;
    std::uint32_t max;
  };
  for (const Bound& bound :
       {Bound{"dim", dim, kDimMax}, Bound{"hidden_dim", hidden_dim, kDimMax * 4},
        Bound{"layers", layers, kLayersMax}, Bound{"heads", heads, kDimMax},
        Bound{"kv_heads", kv_heads, kDimMax}, Bound{"vocab_size", vocab_size, kVocabMax},
        Bound{"context_tokens_max", context_tokens_max, kContextMax}}) {
    if (bound.value == 0 || bound.value > bound.max) {
      return refused(*this, std::string(bound.name) + " is " + std::to_string(bound.value) +
                                ", not 1 to " + std::to_string(bound.max));
    }
  }
  if (dim % heads != 0) {
    return refused(*this, "dim " + std::to_string(dim) + " is no multiple of " +
                              std::to_string(heads) + " heads");
  }
  if (heads % kv_heads != 0) {
    return refused(*this, std::to_string(heads) + " heads are no multiple of " +
                              std::to_string(kv_heads) + " kv_heads");
  }
  if (head_dim() % 2 != 0) {
    return refused(*this, "head dim " + std::to_string(head_dim()) +
                              " is odd, but positions are rotations of pairs");
  }
  return {};
}

std::expected<Recipe, Error> recipe_for(const ModelConfig& config, LayerRange layers, DType dtype) {
  if (auto sane = config.check(); !sane) return std::unexpected(sane.error());
  if (layers.first > layers.last || layers.last >= config.layers) {
    return refused(config, "layers " + std::to_string(layers.first) + "-" +
                               std::to_string(layers.last) + " are not among its " +
                               std::to_string(config.layers));
  }
  return Recipe::make({.architecture = "llama",
                       .model_id = config.model_id,
                       .dtype = dtype,
                       .kv_heads = config.kv_heads,
                       .key_dim = config.head_dim(),
                       .value_dim = config.head_dim(),
                       .layers = layers});
}

}  // namespace hotkv::adapter
