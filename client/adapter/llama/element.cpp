#include "client/adapter/llama/element.hpp"

#include <bit>
#include <cstring>

#include "shared/check.hpp"

namespace hotkv::llama {
namespace {

constexpr std::uint32_t kSignMask = 0x8000'0000;
constexpr std::uint32_t kInfinity = 0x7f80'0000;

template <std::uint16_t (*encode)(float)>
void encode_halves(std::span<const float> values, std::span<std::byte> row) {
  for (std::size_t i = 0; i < values.size(); ++i) {
    const std::uint16_t bits = encode(values[i]);
    std::memcpy(row.data() + i * sizeof bits, &bits, sizeof bits);
  }
}

template <float (*decode)(std::uint16_t)>
void decode_halves(std::span<const std::byte> row, std::span<float> values) {
  for (std::size_t i = 0; i < values.size(); ++i) {
    std::uint16_t bits;
    std::memcpy(&bits, row.data() + i * sizeof bits, sizeof bits);
    values[i] = decode(bits);
  }
}

}  // namespace

std::uint16_t f16_from_f32(float value) {
  const auto bits = std::bit_cast<std::uint32_t>(value);
  const auto sign = static_cast<std::uint16_t>((bits & kSignMask) >> 16);
  std::uint32_t magnitude = bits & ~kSignMask;
  if (magnitude > kInfinity) return static_cast<std::uint16_t>(sign | 0x7e00);
  // 65520 and more round to infinity: half a step above 65504, the largest finite f16.
  if (magnitude >= 0x477f'f000) return static_cast<std::uint16_t>(sign | 0x7c00);
  if (magnitude < 0x3880'0000) {
    // Below 2^-14 an f16 counts steps of 2^-24, which is the step of f32 in [0.5, 1): adding 0.5
    // rounds to it and leaves the count in the low bits.
    const float shifted = std::bit_cast<float>(magnitude) + 0.5f;
    return static_cast<std::uint16_t>(
        sign | (std::bit_cast<std::uint32_t>(shifted) - std::bit_cast<std::uint32_t>(0.5f)));
  }
  // The exponent's bias goes from 127 to 15; 13 bits of the fraction go, rounded half to even.
  const std::uint32_t is_odd = (magnitude >> 13) & 1;
  magnitude = magnitude - ((127u - 15u) << 23) + 0xfff + is_odd;
  return static_cast<std::uint16_t>(sign | (magnitude >> 13));
}

float f32_from_f16(std::uint16_t bits) {
  const std::uint32_t sign = (bits & 0x8000u) << 16;
  const std::uint32_t magnitude = bits & 0x7fffu;
  if (magnitude >= 0x7c00) {
    return std::bit_cast<float>(sign | kInfinity | (magnitude & 0x3ff) << 13);
  }
  // Moved into f32's fields the exponent is too small by 112, for subnormal values as well.
  const float scaled = std::bit_cast<float>(magnitude << 13) * 0x1p112f;
  return std::bit_cast<float>(sign | std::bit_cast<std::uint32_t>(scaled));
}

std::uint16_t bf16_from_f32(float value) {
  const auto bits = std::bit_cast<std::uint32_t>(value);
  if ((bits & ~kSignMask) > kInfinity) return static_cast<std::uint16_t>(bits >> 16 | 0x40);
  const std::uint32_t is_odd = (bits >> 16) & 1;
  return static_cast<std::uint16_t>((bits + 0x7fff + is_odd) >> 16);
}

float f32_from_bf16(std::uint16_t bits) {
  return std::bit_cast<float>(std::uint32_t{bits} << 16);
}

bool is_element_dtype(DType dtype) {
  return dtype == DType::f32 || dtype == DType::f16 || dtype == DType::bf16;
}

void encode_row(DType dtype, std::span<const float> values, std::span<std::byte> row) {
  switch (dtype) {
    case DType::f32: std::memcpy(row.data(), values.data(), values.size_bytes()); return;
    case DType::f16: return encode_halves<f16_from_f32>(values, row);
    case DType::bf16: return encode_halves<bf16_from_f32>(values, row);
    default: HOTKV_CHECK(false, "a row of a dtype that was refused at construction");
  }
}

void decode_row(DType dtype, std::span<const std::byte> row, std::span<float> values) {
  switch (dtype) {
    case DType::f32: std::memcpy(values.data(), row.data(), values.size_bytes()); return;
    case DType::f16: return decode_halves<f32_from_f16>(row, values);
    case DType::bf16: return decode_halves<f32_from_bf16>(row, values);
    default: HOTKV_CHECK(false, "a row of a dtype that was refused at construction");
  }
}

std::span<const float> row_as_f32(DType dtype, std::span<const std::byte> row,
                                  std::span<float> scratch) {
  if (dtype == DType::f32) {
    return {reinterpret_cast<const float*>(row.data()), row.size() / sizeof(float)};
  }
  decode_row(dtype, row, scratch);
  return scratch;
}

}  // namespace hotkv::llama
