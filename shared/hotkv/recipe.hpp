#pragma once
// The recipe: everything that makes KV bytes compatible.

#include <array>
#include <cstddef>
#include <cstdint>
#include <expected>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include <hotkv/error.hpp>

namespace hotkv {

// The element type of keys and values. Numbers are on the wire and in shared memory.
enum class DType : std::uint32_t {
  f32 = 1,
  f16 = 2,
  bf16 = 3,
  f8_e4m3 = 4,
  f8_e5m2 = 5,
  i8 = 6,
  q8_0 = 7,  // ggml block: one f16 scale and 32 int8
  q4_0 = 8,  // ggml block: one f16 scale and 32 int4
};

// Size of a dtype: `block_bytes` bytes hold `block_elements` elements (1 for all plain types).
struct DTypeTraits {
  DType dtype;
  std::string_view name;
  std::uint32_t block_elements;
  std::uint32_t block_bytes;
};

// nullptr for a number that is no dtype.
[[nodiscard]] const DTypeTraits* dtype_traits(DType dtype);
[[nodiscard]] std::optional<DType> dtype_from_name(std::string_view name);

// The layers a shard owns: [first, last], both included, as in the model's own numbering.
struct LayerRange {
  std::uint32_t first = 0;
  std::uint32_t last = 0;
  [[nodiscard]] std::uint32_t count() const { return last - first + 1; }
  friend bool operator==(const LayerRange&, const LayerRange&) = default;
};

// What a caller says of its KV. Row of one token and layer: K is [kv_heads][key_dim], V is
// [kv_heads][value_dim] in `dtype`. value_dim 0 is allowed: latent attention keeps one tensor.
struct RecipeFields {
  std::string architecture;  // any known spelling: "llama", "LlamaForCausalLM"
  std::string model_id;      // 1 to 128 bytes; names weights and tokenizer, not a path
  DType dtype = DType::f16;
  std::uint32_t kv_heads = 0;
  std::uint32_t key_dim = 0;
  std::uint32_t value_dim = 0;
  LayerRange layers;
};

// The canonical form of an architecture name: lower case, without a framework's class suffix.
// "LlamaForCausalLM", "llama" -> "llama".
[[nodiscard]] std::string canonical_architecture(std::string_view name);

// The architectures certified where nothing else is configured.
[[nodiscard]] const std::vector<std::string>& default_certified_architectures();

using Fingerprint = std::array<std::byte, 32>;

// A checked recipe. Immutable: whoever holds one holds a certified architecture and sane numbers.
class Recipe {
 public:
  static constexpr std::size_t kArchitectureBytesMax = 64;
  static constexpr std::size_t kModelIdBytesMax = 128;
  // Bounds keep every product of sizes far below 2^64; no model of today comes near them.
  static constexpr std::uint32_t kLayersMax = 4096;
  static constexpr std::uint32_t kHeadsMax = 4096;
  static constexpr std::uint32_t kDimMax = 65536;

  // Errors: uncertified_architecture (fails closed; names the architecture and the certified ones);
  // invalid_argument naming the field: zero heads or key_dim, layers out of order, unknown dtype,
  // a row that a block format does not divide, names empty or too long.
  [[nodiscard]] static std::expected<Recipe, Error> make(
      RecipeFields fields,
      std::span<const std::string> certified_architectures = default_certified_architectures());

  [[nodiscard]] const RecipeFields& fields() const { return fields_; }
  // Bytes of K (or V) of one token in one layer: kv_heads * dim in the dtype.
  [[nodiscard]] std::uint64_t key_row_bytes() const;
  [[nodiscard]] std::uint64_t value_row_bytes() const;
  // Bytes of one token in all owned layers: layers * kv_heads * (key_dim + value_dim) in the dtype.
  [[nodiscard]] std::uint64_t bytes_per_token() const;
  // SHA-256 of canonical_text().
  [[nodiscard]] const Fingerprint& fingerprint() const { return fingerprint_; }
  // Every field, one "name=value" line each, in a fixed order: what the fingerprint covers.
  [[nodiscard]] std::string canonical_text() const;
  // Fields that differ, as "field: expected A, got B", joined with "; ". Empty if compatible.
  [[nodiscard]] std::string difference_from(const Recipe& expected) const;

  friend bool operator==(const Recipe& a, const Recipe& b) {
    return a.fingerprint_ == b.fingerprint_;
  }

 private:
  Recipe() = default;
  RecipeFields fields_;
  Fingerprint fingerprint_{};
};

}  // namespace hotkv
