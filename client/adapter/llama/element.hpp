#pragma once
// Rows of K and V in memory: f32, f16 or bf16, and the f32 that the arithmetic uses.

#include <cstddef>
#include <cstdint>
#include <span>

#include <hotkv/recipe.hpp>

namespace hotkv::llama {

// IEEE 754 binary16 and bfloat16, to nearest, ties to even; overflow gives infinity, a NaN stays a
// NaN. Back to f32 is exact.
[[nodiscard]] std::uint16_t f16_from_f32(float value);
[[nodiscard]] float f32_from_f16(std::uint16_t bits);
[[nodiscard]] std::uint16_t bf16_from_f32(float value);
[[nodiscard]] float f32_from_bf16(std::uint16_t bits);

// The dtypes that the functions below know.
[[nodiscard]] bool is_element_dtype(DType dtype);

// row[i] in `dtype`, from and to f32. Sizes match: row.size() == values.size() * size of a dtype.
void encode_row(DType dtype, std::span<const float> values, std::span<std::byte> row);
void decode_row(DType dtype, std::span<const std::byte> row, std::span<float> values);

// The row as f32: where it lies if that is what it is, else converted into `scratch`, one f32 for
// each element. The row is aligned to its element's size.
[[nodiscard]] std::span<const float> row_as_f32(DType dtype, std::span<const std::byte> row,
                                                std::span<float> scratch);

}  // namespace hotkv::llama
