#include "client/adapter/llama/element.hpp"

#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <limits>
#include <vector>

namespace hotkv::llama {
namespace {

constexpr std::uint32_t kAll = 1u << 16;

// The value of a small float by its definition: a sign, an exponent, a fraction.
double value_of(std::uint32_t bits, int exponent_bits, int fraction_bits) {
  const int exponent = static_cast<int>(bits >> fraction_bits) & ((1 << exponent_bits) - 1);
  const double fraction = bits & ((1u << fraction_bits) - 1);
  const int bias = (1 << (exponent_bits - 1)) - 1;
  const double magnitude =
      exponent == 0 ? std::ldexp(fraction, 1 - bias - fraction_bits)
                    : std::ldexp(fraction + (1u << fraction_bits), exponent - bias - fraction_bits);
  return bits >> (exponent_bits + fraction_bits) ? -magnitude : magnitude;
}

struct Format {
  int exponent_bits, fraction_bits;
  std::uint16_t (*encode)(float);
  float (*decode)(std::uint16_t);
  [[nodiscard]] std::uint16_t infinity() const {
    return static_cast<std::uint16_t>(((1 << exponent_bits) - 1) << fraction_bits);
  }
};
constexpr Format kF16{5, 10, f16_from_f32, f32_from_f16};
constexpr Format kBf16{8, 7, bf16_from_f32, f32_from_bf16};

class ElementFormat : public ::testing::TestWithParam<Format> {};

TEST_P(ElementFormat, EveryPatternHasItsValueAndComesBack) {
  const Format& format = GetParam();
  for (std::uint32_t bits = 0; bits < kAll; ++bits) {
    const auto pattern = static_cast<std::uint16_t>(bits);
    const float value = format.decode(pattern);
    if ((bits & 0x7fffu) > format.infinity()) {
      ASSERT_TRUE(std::isnan(value)) << bits;
      ASSERT_TRUE(std::isnan(format.decode(format.encode(value)))) << bits;
      continue;
    }
    if ((bits & 0x7fffu) == format.infinity()) {
      ASSERT_TRUE(std::isinf(value)) << bits;
    } else {
      ASSERT_EQ(value, value_of(bits, format.exponent_bits, format.fraction_bits)) << bits;
    }
    ASSERT_EQ(std::signbit(value), bits >= 0x8000u) << bits;
    ASSERT_EQ(format.encode(value), pattern) << bits;
  }
}

// Between two neighbours: nearer to one it becomes that one, in the middle the even one.
TEST_P(ElementFormat, RoundsToNearestAndTiesToEven) {
  const Format& format = GetParam();
  for (std::uint32_t bits = 0; bits + 1 < format.infinity(); ++bits) {
    const auto low = static_cast<std::uint16_t>(bits);
    const auto high = static_cast<std::uint16_t>(bits + 1);
    // The middle of two neighbours is exact in f32 for f16, and for all bf16 but the smallest.
    const double middle =
        (static_cast<double>(format.decode(low)) + static_cast<double>(format.decode(high))) / 2;
    const auto tie = static_cast<float>(middle);
    if (tie != middle) continue;
    ASSERT_EQ(format.encode(tie), bits % 2 == 0 ? low : high) << bits;
    ASSERT_EQ(format.encode(std::nextafter(tie, 0.0f)), low) << bits;
    ASSERT_EQ(format.encode(std::nextafter(tie, INFINITY)), high) << bits;
    ASSERT_EQ(format.encode(-tie), (bits % 2 == 0 ? low : high) | 0x8000) << bits;
  }
}

INSTANTIATE_TEST_SUITE_P(Formats, ElementFormat, ::testing::Values(kF16, kBf16),
                         [](const auto& instance) {
                           return std::string(instance.param.exponent_bits == 5 ? "f16" : "bf16");
                         });

TEST(Element, WhatIsTooLargeBecomesInfinity) {
  EXPECT_EQ(f16_from_f32(65504.0f), 0x7bff);
  EXPECT_EQ(f16_from_f32(65519.99f), 0x7bff);
  EXPECT_EQ(f16_from_f32(65520.0f), 0x7c00);
  EXPECT_EQ(f16_from_f32(-1e30f), 0xfc00);
  EXPECT_EQ(bf16_from_f32(std::numeric_limits<float>::max()), 0x7f80);
  EXPECT_EQ(bf16_from_f32(-std::numeric_limits<float>::infinity()), 0xff80);
}

TEST(Element, RowsGoThereAndBackInEveryDType) {
  const std::vector<float> values{0.0f, 1.0f, -2.5f, 0.33203125f, 49152.0f};  // exact in all
  for (const DType dtype : {DType::f32, DType::f16, DType::bf16}) {
    std::vector<std::byte> row(values.size() * dtype_traits(dtype)->block_bytes);
    encode_row(dtype, values, row);
    std::vector<float> back(values.size());
    decode_row(dtype, row, back);
    EXPECT_EQ(back, values);
    std::vector<float> scratch(values.size());
    const auto in_place = row_as_f32(dtype, row, scratch);
    EXPECT_TRUE(std::ranges::equal(in_place, values));
    EXPECT_EQ(static_cast<const void*>(in_place.data()) == row.data(), dtype == DType::f32);
  }
  EXPECT_TRUE(is_element_dtype(DType::bf16));
  EXPECT_FALSE(is_element_dtype(DType::q8_0));
}

}  // namespace
}  // namespace hotkv::llama
