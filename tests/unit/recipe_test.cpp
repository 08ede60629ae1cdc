#include <hotkv/recipe.hpp>

#include <gtest/gtest.h>

#include <functional>
#include <string>
#include <vector>

namespace hotkv {
namespace {

RecipeFields llama_fields() {
  return {.architecture = "llama",
          .model_id = "llama-3-8b",
          .dtype = DType::f16,
          .kv_heads = 8,
          .key_dim = 128,
          .value_dim = 128,
          .layers = {0, 31}};
}

Recipe made(const RecipeFields& fields) {
  auto recipe = Recipe::make(fields);
  EXPECT_TRUE(recipe.has_value()) << recipe.error().message();
  return *recipe;
}

// One change of one field, and the name under which the field is reported.
struct Change {
  std::string field;
  std::function<void(RecipeFields&)> apply;
};

// The error that a change of one field of a good recipe leads to.
Error refusal_of(const Change& change) {
  RecipeFields fields = llama_fields();
  change.apply(fields);
  const auto recipe = Recipe::make(fields);
  EXPECT_FALSE(recipe.has_value()) << change.field;
  return recipe ? Error{} : recipe.error();
}

TEST(CanonicalArchitecture, SpellingsOfOneArchitectureAreOne) {
  for (const char* name :
       {"llama", "Llama", "LLAMA", "LlamaForCausalLM", "LlamaModel", "LlamaLMHeadModel"}) {
    EXPECT_EQ(canonical_architecture(name), "llama") << name;
  }
}

TEST(CanonicalArchitecture, IsItsOwnCanonicalForm) {
  for (const char* name : {"LlamaForCausalLM", "GPT2LMHeadModel", "MistralModelModel", "Model",
                           "ForCausalLM", "", "x"}) {
    const std::string once = canonical_architecture(name);
    EXPECT_EQ(canonical_architecture(once), once) << name;
  }
}

TEST(CanonicalArchitecture, DoesNotMakeTwoArchitecturesOne) {
  EXPECT_EQ(canonical_architecture("llama4"), "llama4");
  EXPECT_EQ(canonical_architecture("codellama"), "codellama");
  EXPECT_EQ(canonical_architecture("Llama4ForConditionalGeneration"),
            "llama4forconditionalgeneration");
}

TEST(Recipe, AnUncertifiedArchitectureFailsAtConstruction) {
  for (const char* name : {"mistral", "llama2", "lama", "llam", "Llama4ForConditionalGeneration"}) {
    const Error error =
        refusal_of({"architecture", [&](RecipeFields& f) { f.architecture = name; }});
    EXPECT_EQ(error.code, ErrorCode::uncertified_architecture) << name;
    EXPECT_NE(error.message().find("llama"), std::string::npos) << error.message();
  }
}

TEST(Recipe, AnEmptyCertifiedListCertifiesNothing) {
  const auto recipe = Recipe::make(llama_fields(), std::vector<std::string>{});
  ASSERT_FALSE(recipe.has_value());
  EXPECT_EQ(recipe.error().code, ErrorCode::uncertified_architecture);
}

TEST(Recipe, TheCertifiedListMayUseAnySpelling) {
  RecipeFields fields = llama_fields();
  fields.architecture = "MistralForCausalLM";
  const auto recipe = Recipe::make(fields, std::vector<std::string>{"llama", "Mistral"});
  ASSERT_TRUE(recipe.has_value()) << recipe.error().message();
  EXPECT_EQ(recipe->fields().architecture, "mistral");
}

TEST(Recipe, SpellingsOfOneArchitectureMakeEqualRecipes) {
  RecipeFields fields = llama_fields();
  fields.architecture = "LlamaForCausalLM";
  EXPECT_EQ(made(fields), made(llama_fields()));
  EXPECT_EQ(made(fields).difference_from(made(llama_fields())), "");
}

TEST(Recipe, EveryFieldOutOfRangeIsRefusedByName) {
  const Change changes[] = {
      {"architecture", [](RecipeFields& f) { f.architecture.clear(); }},
      {"architecture", [](RecipeFields& f) { f.architecture = std::string(65, 'l'); }},
      {"architecture", [](RecipeFields& f) { f.architecture = std::string("lla\0ma", 6); }},
      {"model_id", [](RecipeFields& f) { f.model_id.clear(); }},
      {"model_id", [](RecipeFields& f) { f.model_id = std::string(129, 'm'); }},
      {"model_id", [](RecipeFields& f) { f.model_id = std::string("a\0", 2); }},
      {"dtype", [](RecipeFields& f) { f.dtype = DType{0}; }},
      {"dtype", [](RecipeFields& f) { f.dtype = DType{9}; }},
      {"kv_heads", [](RecipeFields& f) { f.kv_heads = 0; }},
      {"kv_heads", [](RecipeFields& f) { f.kv_heads = Recipe::kHeadsMax + 1; }},
      {"key_dim", [](RecipeFields& f) { f.key_dim = 0; }},
      {"key_dim", [](RecipeFields& f) { f.key_dim = Recipe::kDimMax + 1; }},
      {"value_dim", [](RecipeFields& f) { f.value_dim = Recipe::kDimMax + 1; }},
      {"layers.last", [](RecipeFields& f) { f.layers.last = Recipe::kLayersMax; }},
      {"layers",
       [](RecipeFields& f) {
         f.layers = {5, 4};
       }},
  };
  for (const Change& change : changes) {
    const Error error = refusal_of(change);
    EXPECT_EQ(error.code, ErrorCode::invalid_argument) << change.field;
    EXPECT_EQ(error.object, change.field) << error.message();
  }
}

// FR-083: sizes are computed in one place, in which the largest fields do not wrap.
TEST(Recipe, TheLargestNumbersDoNotOverflow) {
  RecipeFields fields = llama_fields();
  fields.dtype = DType::f32;
  fields.kv_heads = Recipe::kHeadsMax;
  fields.key_dim = fields.value_dim = Recipe::kDimMax;
  fields.layers = {0, Recipe::kLayersMax - 1};
  fields.model_id = std::string(Recipe::kModelIdBytesMax, 'm');
  EXPECT_EQ(made(fields).key_row_bytes(), std::uint64_t{1} << 30);
  EXPECT_EQ(made(fields).bytes_per_token(), std::uint64_t{1} << 43);
}

// FR-119: every field is part of the identity and named where it differs.
TEST(Recipe, EveryDifferenceIsNamedWithExpectedAndActual) {
  const Recipe expected = made(llama_fields());
  const Change changes[] = {
      {"model_id: expected llama-3-8b, got other", [](RecipeFields& f) { f.model_id = "other"; }},
      {"dtype: expected f16, got bf16", [](RecipeFields& f) { f.dtype = DType::bf16; }},
      {"kv_heads: expected 8, got 4", [](RecipeFields& f) { f.kv_heads = 4; }},
      {"key_dim: expected 128, got 64", [](RecipeFields& f) { f.key_dim = 64; }},
      {"value_dim: expected 128, got 0", [](RecipeFields& f) { f.value_dim = 0; }},
      {"layers.first: expected 0, got 1", [](RecipeFields& f) { f.layers.first = 1; }},
      {"layers.last: expected 31, got 30", [](RecipeFields& f) { f.layers.last = 30; }},
      {"key_dim: expected 128, got 64; value_dim: expected 128, got 64",
       [](RecipeFields& f) { f.key_dim = f.value_dim = 64; }},
  };
  for (const Change& change : changes) {
    RecipeFields fields = llama_fields();
    change.apply(fields);
    const Recipe other = made(fields);
    EXPECT_EQ(other.difference_from(expected), change.field);
    EXPECT_NE(other.fingerprint(), expected.fingerprint()) << change.field;
    EXPECT_NE(other, expected) << change.field;
  }
}

TEST(Recipe, AnArchitecturesDifferenceIsNamed) {
  const std::vector<std::string> both{"llama", "mistral"};
  RecipeFields fields = llama_fields();
  const auto llama = Recipe::make(fields, both);
  fields.architecture = "mistral";
  const auto mistral = Recipe::make(fields, both);
  EXPECT_EQ(mistral->difference_from(*llama), "architecture: expected llama, got mistral");
  EXPECT_NE(*mistral, *llama);
}

// FR-095: the fields that are hashed together are told apart whatever is in them.
TEST(Recipe, AModelIdCannotForgeAnotherLineOfTheCanonicalText) {
  RecipeFields fields = llama_fields();
  fields.model_id = "m\ndtype=f32";
  EXPECT_NE(made(fields).canonical_text().find(R"(model_id=m\x0adtype=f32)"), std::string::npos);
}

TEST(Recipe, BytesPerTokenGrowWithTheOwnedLayers) {
  RecipeFields fields = llama_fields();
  EXPECT_EQ(made(fields).key_row_bytes(), 8u * 128 * 2);
  EXPECT_EQ(made(fields).bytes_per_token(), 32u * 8 * (128 + 128) * 2);
  fields.layers = {2, 3};
  EXPECT_EQ(made(fields).bytes_per_token(), 2u * 8 * (128 + 128) * 2);
  fields.layers = {3, 3};
  EXPECT_EQ(made(fields).bytes_per_token(), 1u * 8 * (128 + 128) * 2);
}

TEST(Recipe, KeysAndValuesMayHaveDifferentSizes) {
  RecipeFields fields = llama_fields();
  fields.key_dim = 192;
  EXPECT_EQ(made(fields).key_row_bytes(), 8u * 192 * 2);
  EXPECT_EQ(made(fields).value_row_bytes(), 8u * 128 * 2);
}

TEST(Recipe, AModelMayKeepOneTensorOnly) {
  RecipeFields fields = llama_fields();
  fields.kv_heads = 1;
  fields.key_dim = 576;
  fields.value_dim = 0;
  EXPECT_EQ(made(fields).value_row_bytes(), 0u);
  EXPECT_EQ(made(fields).bytes_per_token(), 32u * 576 * 2);
}

TEST(DType, SizesAreThoseOfTheFormats) {
  const struct {
    const char* name;
    std::uint64_t bytes_of_64_elements;
  } sizes[] = {{"f32", 256},    {"f16", 128}, {"bf16", 128}, {"f8_e4m3", 64},
               {"f8_e5m2", 64}, {"i8", 64},   {"q8_0", 68},  {"q4_0", 36}};
  for (const auto& size : sizes) {
    RecipeFields fields = llama_fields();
    const auto dtype = dtype_from_name(size.name);
    ASSERT_TRUE(dtype.has_value()) << size.name;
    fields.dtype = *dtype;
    fields.kv_heads = 1;
    fields.key_dim = fields.value_dim = 64;
    EXPECT_EQ(made(fields).key_row_bytes(), size.bytes_of_64_elements) << size.name;
    EXPECT_EQ(dtype_traits(*dtype)->name, size.name);
  }
}

TEST(DType, UnknownNamesAndNumbersAreNone) {
  EXPECT_EQ(dtype_from_name("F16"), std::nullopt);
  EXPECT_EQ(dtype_from_name(""), std::nullopt);
  EXPECT_EQ(dtype_traits(DType{0}), nullptr);
  EXPECT_EQ(dtype_traits(DType{9}), nullptr);
}

TEST(DType, BlockFormatsNeedRowsThatTheirBlocksDivide) {
  for (const DType dtype : {DType::q8_0, DType::q4_0}) {
    for (const auto& [key_dim, value_dim] : {std::pair{48u, 64u}, {64u, 48u}, {16u, 0u}}) {
      RecipeFields fields = llama_fields();
      fields.dtype = dtype;
      fields.key_dim = key_dim;
      fields.value_dim = value_dim;
      const auto refused = Recipe::make(fields);
      ASSERT_FALSE(refused.has_value()) << key_dim << " " << value_dim;
      EXPECT_EQ(refused.error().object, "dtype");
    }
    RecipeFields fields = llama_fields();
    fields.dtype = dtype;
    fields.key_dim = 96;
    fields.value_dim = 0;
    EXPECT_TRUE(Recipe::make(fields).has_value());
  }
}

}  // namespace
}  // namespace hotkv
