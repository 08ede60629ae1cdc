// What a recipe's fingerprint covers, to the byte. OPEN and EXPLAIN carry it, and a daemon compares
// it with the one of memory that may be older than itself.

#include <hotkv/recipe.hpp>

#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "tests/golden/golden_bytes.hpp"

namespace hotkv {
namespace {

using namespace golden;

constexpr const char* kBumpRecipe =
    "the canonical text of recipes changed, so old and new builds refuse each other's contexts: "
    "bump "
    "its first line in shared/hotkv/recipe.cpp, kLayoutVersion in shared/layout.hpp and "
    "kVersionMax "
    "in shared/protocol.hpp, and write the new values here";

Recipe llama() {
  return *Recipe::make({.architecture = "LlamaForCausalLM",
                        .model_id = "llama-3-8b",
                        .dtype = DType::f16,
                        .kv_heads = 8,
                        .key_dim = 128,
                        .value_dim = 128,
                        .layers = {0, 31}});
}

// Bytes that need escaping, one tensor, a block format, layers in the middle of a model.
Recipe unusual() {
  const std::vector<std::string> certified{"deepseek"};
  return *Recipe::make({.architecture = "DeepSeek",
                        .model_id = "weights \"v3\"\n\xff",
                        .dtype = DType::q8_0,
                        .kv_heads = 1,
                        .key_dim = 576,
                        .value_dim = 0,
                        .layers = {2, 3}},
                       certified);
}

TEST(RecipeGolden, CanonicalText) {
  EXPECT_EQ(llama().canonical_text(),
            "hotkv-recipe-1\n"
            "architecture=llama\n"
            "model_id=llama-3-8b\n"
            "dtype=f16\n"
            "kv_heads=8\n"
            "key_dim=128\n"
            "value_dim=128\n"
            "layers.first=0\n"
            "layers.last=31\n")
      << kBumpRecipe;
  EXPECT_EQ(unusual().canonical_text(),
            "hotkv-recipe-1\n"
            "architecture=deepseek\n"
            "model_id=weights \\x22v3\\x22\\x0a\\xff\n"
            "dtype=q8_0\n"
            "kv_heads=1\n"
            "key_dim=576\n"
            "value_dim=0\n"
            "layers.first=2\n"
            "layers.last=3\n")
      << kBumpRecipe;
}

TEST(RecipeGolden, Fingerprint) {
  EXPECT_EQ(hex_of_bytes(llama().fingerprint()),
            "c95150b2fb99f3a6a210704ab1f9a8b53dfe9969ce18db9e80f3a1e07fa87f55")
      << kBumpRecipe;
  EXPECT_EQ(hex_of_bytes(unusual().fingerprint()),
            "5ad1d22e5dd46307835aa975e3f39860a4b774c3ad12f8dc7a0d55b9852b089d")
      << kBumpRecipe;
}

TEST(RecipeGolden, NumbersAndSizesOfDTypes) {
  const DTypeTraits expected[] = {{DType{1}, "f32", 1, 4},     {DType{2}, "f16", 1, 2},
                                  {DType{3}, "bf16", 1, 2},    {DType{4}, "f8_e4m3", 1, 1},
                                  {DType{5}, "f8_e5m2", 1, 1}, {DType{6}, "i8", 1, 1},
                                  {DType{7}, "q8_0", 32, 34},  {DType{8}, "q4_0", 32, 18}};
  for (const DTypeTraits& traits : expected) {
    const DTypeTraits* actual = dtype_traits(traits.dtype);
    ASSERT_NE(actual, nullptr) << traits.name;
    EXPECT_EQ(actual->name, traits.name) << kBumpRecipe;
    EXPECT_EQ(actual->block_elements, traits.block_elements) << traits.name << ": " << kBumpRecipe;
    EXPECT_EQ(actual->block_bytes, traits.block_bytes) << traits.name << ": " << kBumpRecipe;
  }
}

}  // namespace
}  // namespace hotkv
