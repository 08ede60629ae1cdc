#pragma once
// The arithmetic of a Llama layer, one token at a time, in f32.
//
// Every function adds in one fixed order that depends on sizes alone. So a token's numbers are the
// same bit for bit whether it is computed alone, in a prefill with others, or by another process:
// what makes cached and recomputed tokens interchangeable, and tests able to ask for equality.

#include <cstdint>
#include <span>
#include <vector>

namespace hotkv::llama {

// a . b; sizes are equal.
[[nodiscard]] float dot(std::span<const float> a, std::span<const float> b);

// out[row] = matrix[row] . in, for a matrix [out.size()][in.size()].
void multiply(std::span<const float> matrix, std::span<const float> in, std::span<float> out);

// to += from
void add(std::span<const float> from, std::span<float> to);

// out[i] = in[i] * weight[i] / sqrt(mean(in^2) + epsilon). RMSNorm, arXiv:1910.07467. `out` may be
// `in`.
void rms_norm(std::span<const float> in, std::span<const float> weight, float epsilon,
              std::span<float> out);

// In place exp(x - max) / sum. Not for an empty span.
void softmax(std::span<float> scores);

// gate[i] = gate[i] * sigmoid(gate[i]) * up[i]. SwiGLU, arXiv:2002.05202.
void swiglu(std::span<float> gate, std::span<const float> up);

// Rotary position embedding, arXiv:2104.09864: in each head the pair (2i, 2i + 1) is rotated by
// position * base^(-2i / head_dim).
class Rope {
 public:
  Rope(std::uint32_t head_dim, std::uint32_t positions, float base);
  // Rotates every head of heads [n][head_dim] in place. position < positions.
  void rotate(std::span<float> heads, std::uint32_t position) const;

 private:
  std::uint32_t head_dim_;
  std::vector<float> cosines_;  // [positions][head_dim / 2]
  std::vector<float> sines_;
};

}  // namespace hotkv::llama
