#include <hotkv/recipe.hpp>

#include <openssl/sha.h>

#include <algorithm>
#include <cctype>

#include <hotkv/types.hpp>

namespace hotkv {
namespace {

constexpr DTypeTraits kDTypes[] = {
    {DType::f32, "f32", 1, 4},         {DType::f16, "f16", 1, 2},
    {DType::bf16, "bf16", 1, 2},       {DType::f8_e4m3, "f8_e4m3", 1, 1},
    {DType::f8_e5m2, "f8_e5m2", 1, 1}, {DType::i8, "i8", 1, 1},
    {DType::q8_0, "q8_0", 32, 34},     {DType::q4_0, "q4_0", 32, 18},
};

Error refuse(std::string field, std::string cause) {
  return Error{ErrorCode::invalid_argument, "recipe", std::move(field), std::move(cause)};
}

std::string joined(std::span<const std::string> names) {
  std::string text;
  for (const std::string& name : names) text += (text.empty() ? "" : ", ") + name;
  return text;
}

std::uint64_t row_bytes(const RecipeFields& fields, std::uint32_t dim) {
  const DTypeTraits& traits = *dtype_traits(fields.dtype);
  return std::uint64_t{fields.kv_heads} * (dim / traits.block_elements) * traits.block_bytes;
}

std::string check_name(std::string_view name, std::size_t bytes_max) {
  if (!name.empty() && name.size() <= bytes_max && name.find('\0') == name.npos) return {};
  return "must have 1 to " + std::to_string(bytes_max) + " bytes and no zero byte, has " +
         std::to_string(name.size());
}

std::string check_number(std::uint64_t value, std::uint64_t least, std::uint64_t most) {
  if (value >= least && value <= most) return {};
  return "must be " + std::to_string(least) + " to " + std::to_string(most) + ", is " +
         std::to_string(value);
}

// The first field that is out of its range, or nothing.
std::optional<Error> first_bad_field(const RecipeFields& fields) {
  struct Check {
    const char* field;
    std::string cause;
  };
  const Check checks[] = {
      {"architecture", check_name(fields.architecture, Recipe::kArchitectureBytesMax)},
      {"model_id", check_name(fields.model_id, Recipe::kModelIdBytesMax)},
      {"kv_heads", check_number(fields.kv_heads, 1, Recipe::kHeadsMax)},
      {"key_dim", check_number(fields.key_dim, 1, Recipe::kDimMax)},
      {"value_dim", check_number(fields.value_dim, 0, Recipe::kDimMax)},
      {"layers.last", check_number(fields.layers.last, 0, Recipe::kLayersMax - 1)},
  };
  for (const Check& check : checks) {
    if (!check.cause.empty()) return refuse(check.field, check.cause);
  }
  if (fields.layers.first > fields.layers.last) {
    return refuse("layers", "first " + std::to_string(fields.layers.first) + " is above last " +
                                std::to_string(fields.layers.last));
  }
  const DTypeTraits* traits = dtype_traits(fields.dtype);
  if (traits == nullptr) {
    return refuse("dtype", "number " + std::to_string(static_cast<std::uint32_t>(fields.dtype)) +
                               " is not known");
  }
  if (fields.key_dim % traits->block_elements != 0 ||
      fields.value_dim % traits->block_elements != 0) {
    return refuse("dtype", std::string(traits->name) + " holds blocks of " +
                               std::to_string(traits->block_elements) +
                               " elements, which divide neither or only one of key_dim " +
                               std::to_string(fields.key_dim) + " and value_dim " +
                               std::to_string(fields.value_dim));
  }
  return std::nullopt;
}

}  // namespace

const DTypeTraits* dtype_traits(DType dtype) {
  const auto* found = std::ranges::find(kDTypes, dtype, &DTypeTraits::dtype);
  return found == std::end(kDTypes) ? nullptr : found;
}

std::optional<DType> dtype_from_name(std::string_view name) {
  const auto* found = std::ranges::find(kDTypes, name, &DTypeTraits::name);
  if (found == std::end(kDTypes)) return std::nullopt;
  return found->dtype;
}

std::string canonical_architecture(std::string_view name) {
  for (const std::string_view suffix : {"ForCausalLM", "LMHeadModel", "Model"}) {
    if (name.size() > suffix.size() && name.ends_with(suffix)) {
      name.remove_suffix(suffix.size());
      break;
    }
  }
  std::string canonical(name);
  std::ranges::transform(canonical, canonical.begin(),
                         [](unsigned char c) { return static_cast<char>(std::tolower(c)); });
  return canonical;
}

const std::vector<std::string>& default_certified_architectures() {
  static const std::vector<std::string> names{"llama"};
  return names;
}

std::expected<Recipe, Error> Recipe::make(RecipeFields fields,
                                          std::span<const std::string> certified_architectures) {
  if (auto bad = first_bad_field(fields)) return std::unexpected(std::move(*bad));
  fields.architecture = canonical_architecture(fields.architecture);
  const bool certified = std::ranges::any_of(certified_architectures, [&](const auto& name) {
    return canonical_architecture(name) == fields.architecture;
  });
  if (!certified) {
    return std::unexpected(Error{ErrorCode::uncertified_architecture, "recipe",
                                 escape_bytes(fields.architecture),
                                 "certified are: " + joined(certified_architectures)});
  }
  Recipe recipe;
  recipe.fields_ = std::move(fields);
  const std::string text = recipe.canonical_text();
  SHA256(reinterpret_cast<const unsigned char*>(text.data()), text.size(),
         reinterpret_cast<unsigned char*>(recipe.fingerprint_.data()));
  return recipe;
}

std::uint64_t Recipe::key_row_bytes() const {
  return row_bytes(fields_, fields_.key_dim);
}

std::uint64_t Recipe::value_row_bytes() const {
  return row_bytes(fields_, fields_.value_dim);
}

std::uint64_t Recipe::bytes_per_token() const {
  return fields_.layers.count() * (key_row_bytes() + value_row_bytes());
}

namespace {

struct NamedValue {
  const char* name;
  std::string value;
};

std::array<NamedValue, 8> named_values(const RecipeFields& fields) {
  return {{{"architecture", escape_bytes(fields.architecture)},
           {"model_id", escape_bytes(fields.model_id)},
           {"dtype", std::string(dtype_traits(fields.dtype)->name)},
           {"kv_heads", std::to_string(fields.kv_heads)},
           {"key_dim", std::to_string(fields.key_dim)},
           {"value_dim", std::to_string(fields.value_dim)},
           {"layers.first", std::to_string(fields.layers.first)},
           {"layers.last", std::to_string(fields.layers.last)}}};
}

}  // namespace

std::string Recipe::canonical_text() const {
  std::string text = "hotkv-recipe-1\n";
  for (const NamedValue& field : named_values(fields_)) {
    text += std::string(field.name) + "=" + field.value + "\n";
  }
  return text;
}

std::string Recipe::difference_from(const Recipe& expected) const {
  const auto mine = named_values(fields_);
  const auto theirs = named_values(expected.fields_);
  std::string text;
  for (std::size_t i = 0; i < mine.size(); ++i) {
    if (mine[i].value == theirs[i].value) continue;
    text += (text.empty() ? "" : "; ") + std::string(mine[i].name) + ": expected " +
            theirs[i].value + ", got " + mine[i].value;
  }
  return text;
}

}  // namespace hotkv
