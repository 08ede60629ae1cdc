#include "client/adapter/llama/weights.hpp"

#include <openssl/evp.h>

#include <array>
#include <bit>
#include <boost/interprocess/file_mapping.hpp>
#include <boost/interprocess/mapped_region.hpp>
#include <cmath>
#include <cstring>
#include <string>

#include <hotkv/types.hpp>

namespace hotkv::llama {
namespace {

namespace interprocess = boost::interprocess;
using adapter::ModelConfig;

struct CheckpointHeader {
  std::int32_t dim;
  std::int32_t hidden_dim;
  std::int32_t layers;
  std::int32_t heads;
  std::int32_t kv_heads;
  std::int32_t vocab_size;  // negative: the output matrix is not the embedding
  std::int32_t context_tokens_max;
};
static_assert(sizeof(CheckpointHeader) == 28);

std::unexpected<Error> refused(const std::string& object, std::string cause) {
  return std::unexpected(
      Error{ErrorCode::invalid_argument, "load model", object, std::move(cause)});
}

// The first 16 hex digits of the SHA-256 of `bytes`: enough to tell models apart by accident, and
// the name in front of it for people.
std::string digest_of(std::span<const std::byte> bytes) {
  std::array<unsigned char, EVP_MAX_MD_SIZE> digest{};
  unsigned size = 0;
  EVP_Digest(bytes.data(), bytes.size(), digest.data(), &size, EVP_sha256(), nullptr);
  constexpr std::string_view kHex = "0123456789abcdef";
  std::string text;
  for (std::size_t i = 0; i < 8; ++i) {
    text += kHex[digest[i] >> 4];
    text += kHex[digest[i] & 15];
  }
  return text;
}

// Everything by which two seeded models of one seed can differ.
std::string text_of(const ModelConfig& config) {
  std::string text;
  for (const std::uint32_t number : {config.dim, config.hidden_dim, config.layers, config.heads,
                                     config.kv_heads, config.vocab_size, config.context_tokens_max,
                                     std::bit_cast<std::uint32_t>(config.rope_base),
                                     std::bit_cast<std::uint32_t>(config.norm_epsilon)}) {
    text += std::to_string(number) + " ";
  }
  return text;
}

// A negative number becomes a huge one, which ModelConfig::check refuses by the field's name.
ModelConfig config_of(const CheckpointHeader& header) {
  ModelConfig config;
  config.dim = static_cast<std::uint32_t>(header.dim);
  config.hidden_dim = static_cast<std::uint32_t>(header.hidden_dim);
  config.layers = static_cast<std::uint32_t>(header.layers);
  config.heads = static_cast<std::uint32_t>(header.heads);
  config.kv_heads = static_cast<std::uint32_t>(header.kv_heads);
  const auto vocab = static_cast<std::uint32_t>(header.vocab_size);
  config.vocab_size = header.vocab_size < 0 ? 0u - vocab : vocab;
  config.context_tokens_max = static_cast<std::uint32_t>(header.context_tokens_max);
  return config;
}

// Takes tensors off the front of a list of parameters; one that is not there any more is noted.
class Slicer {
 public:
  explicit Slicer(std::span<const float> parameters) : rest_(parameters) {}
  std::span<const float> take(std::uint64_t rows, std::uint64_t columns = 1) {
    const std::uint64_t count = rows * columns;  // below 2^44, by ModelConfig::check
    taken_ += count;
    if (count > rest_.size()) {
      rest_ = {};
      is_short_ = true;
      return {};
    }
    const auto tensor = rest_.first(count);
    rest_ = rest_.subspan(count);
    return tensor;
  }
  [[nodiscard]] bool is_exact() const { return !is_short_ && rest_.empty(); }
  [[nodiscard]] std::uint64_t taken() const { return taken_; }

 private:
  std::span<const float> rest_;
  std::uint64_t taken_ = 0;
  bool is_short_ = false;
};

// splitmix64: a stream of 64-bit numbers that is the same everywhere, unlike the standard
// library's distributions.
class Stream {
 public:
  explicit Stream(std::uint64_t seed) : state_(seed) {}
  // Uniform in [-1, 1).
  float next() {
    state_ += 0x9e37'79b9'7f4a'7c15;
    std::uint64_t z = state_;
    z = (z ^ (z >> 30)) * 0xbf58'476d'1ce4'e5b9;
    z = (z ^ (z >> 27)) * 0x94d0'49bb'1331'11eb;
    z ^= z >> 31;
    return static_cast<float>(z >> 40) * 0x1p-23f - 1.0f;
  }
  void fill(std::vector<float>& to, std::uint64_t count, float scale, float offset = 0) {
    for (std::uint64_t i = 0; i < count; ++i) to.push_back(offset + scale * next());
  }

 private:
  std::uint64_t state_;
};

// In a checkpoint's order. A uniform value in [-s, s) has variance s^2 / 3, so s = sqrt(3 / inputs)
// keeps a product as large as its input.
std::vector<float> parameters_from(const ModelConfig& config, std::uint64_t seed) {
  Stream stream(seed);
  std::vector<float> all;
  const std::uint64_t dim = config.dim;
  const std::uint64_t layers = config.layers;
  const float by_dim = std::sqrt(3.0f / static_cast<float>(config.dim));
  const float by_hidden = std::sqrt(3.0f / static_cast<float>(config.hidden_dim));
  stream.fill(all, config.vocab_size * dim, 1.0f);                // embedding
  stream.fill(all, layers * dim, 0.1f, 1.0f);                     // attention norms
  stream.fill(all, layers * dim * dim, by_dim);                   // wq
  stream.fill(all, layers * config.kv_dim() * dim, by_dim);       // wk
  stream.fill(all, layers * config.kv_dim() * dim, by_dim);       // wv
  stream.fill(all, layers * dim * dim, by_dim);                   // wo
  stream.fill(all, layers * dim, 0.1f, 1.0f);                     // feed-forward norms
  stream.fill(all, layers * config.hidden_dim * dim, by_dim);     // w1
  stream.fill(all, layers * dim * config.hidden_dim, by_hidden);  // w2
  stream.fill(all, layers * config.hidden_dim * dim, by_dim);     // w3
  stream.fill(all, dim, 0.1f, 1.0f);                              // final norm
  all.resize(all.size() + std::uint64_t{config.context_tokens_max} * config.head_dim());
  stream.fill(all, config.vocab_size * dim, by_dim);  // output
  return all;
}

}  // namespace

std::expected<Weights, Error> Weights::from_checkpoint(const std::filesystem::path& path) {
  std::shared_ptr<interprocess::mapped_region> region;
  try {
    const interprocess::file_mapping file(path.c_str(), interprocess::read_only);
    region = std::make_shared<interprocess::mapped_region>(file, interprocess::read_only);
  } catch (const interprocess::interprocess_exception& failure) {
    return std::unexpected(Error{ErrorCode::system_error, "map model", path.string(),
                                 failure.what(), failure.get_native_error()});
  }
  const std::span bytes(static_cast<const std::byte*>(region->get_address()), region->get_size());
  CheckpointHeader header;
  if (bytes.size() < sizeof header || bytes.size() % sizeof(float) != 0) {
    return refused(path.string(), "no checkpoint of version 0: " + std::to_string(bytes.size()) +
                                      " bytes are not 28 and some f32");
  }
  std::memcpy(&header, bytes.data(), sizeof header);
  Weights weights;
  weights.config_ = config_of(header);
  weights.config_.model_id = path.string();  // what errors name
  if (auto sane = weights.config_.check(); !sane) return std::unexpected(sane.error());
  weights.memory_ = region;
  const auto parameters = bytes.subspan(sizeof header);
  if (auto sliced = weights.slice(
          {reinterpret_cast<const float*>(parameters.data()), parameters.size() / sizeof(float)},
          header.vocab_size < 0);
      !sliced) {
    return std::unexpected(sliced.error());
  }
  weights.config_.model_id =
      escape_bytes(path.stem().string()).substr(0, 64) + "-" + digest_of(bytes);
  return weights;
}

std::expected<Weights, Error> Weights::from_seed(ModelConfig config, std::uint64_t seed) {
  config.model_id = "seeded-" + std::to_string(seed);  // what errors name
  if (auto sane = config.check(); !sane) return std::unexpected(sane.error());
  const std::string text = text_of(config);
  config.model_id += "-" + digest_of(std::as_bytes(std::span(text)));
  Weights weights;
  weights.config_ = std::move(config);
  auto parameters =
      std::make_shared<const std::vector<float>>(parameters_from(weights.config_, seed));
  weights.memory_ = parameters;
  if (auto sliced = weights.slice(*parameters, true); !sliced) {
    return std::unexpected(sliced.error());
  }
  return weights;
}

std::expected<void, Error> Weights::slice(std::span<const float> parameters, bool has_own_output) {
  const std::uint64_t dim = config_.dim;
  const std::uint64_t kv_dim = config_.kv_dim();
  const std::uint64_t hidden = config_.hidden_dim;
  layers_.resize(config_.layers);
  Slicer slicer(parameters);
  const auto each_layer = [&](std::span<const float> LayerWeights::*tensor, std::uint64_t rows,
                              std::uint64_t columns) {
    for (LayerWeights& layer : layers_) layer.*tensor = slicer.take(rows, columns);
  };
  embedding_ = slicer.take(config_.vocab_size, dim);
  each_layer(&LayerWeights::attention_norm, dim, 1);
  each_layer(&LayerWeights::wq, dim, dim);
  each_layer(&LayerWeights::wk, kv_dim, dim);
  each_layer(&LayerWeights::wv, kv_dim, dim);
  each_layer(&LayerWeights::wo, dim, dim);
  each_layer(&LayerWeights::ffn_norm, dim, 1);
  each_layer(&LayerWeights::w1, hidden, dim);
  each_layer(&LayerWeights::w2, dim, hidden);
  each_layer(&LayerWeights::w3, hidden, dim);
  final_norm_ = slicer.take(dim);
  // Two tables of rotations that old checkpoints carry; Rope computes its own.
  (void)slicer.take(config_.context_tokens_max, config_.head_dim());
  output_ = has_own_output ? slicer.take(config_.vocab_size, dim) : embedding_;
  if (slicer.is_exact()) return {};
  return refused(config_.model_id, "its sizes ask for " + std::to_string(slicer.taken()) +
                                       " parameters, it has " + std::to_string(parameters.size()));
}

}  // namespace hotkv::llama
