#include "client/adapter/llama/kernels.hpp"

#include <algorithm>
#include <array>
#include <cmath>
#include <numeric>

namespace hotkv::llama {

float dot(std::span<const float> a, std::span<const float> b) {
  // Eight partial sums: an order the compiler may keep in vector registers without changing it.
  constexpr std::size_t kLanes = 8;
  std::array<float, kLanes> sums{};
  const std::size_t whole = a.size() - a.size() % kLanes;
  for (std::size_t i = 0; i < whole; i += kLanes) {
    for (std::size_t lane = 0; lane < kLanes; ++lane) sums[lane] += a[i + lane] * b[i + lane];
  }
  for (std::size_t i = whole; i < a.size(); ++i) sums[i - whole] += a[i] * b[i];
  return ((sums[0] + sums[1]) + (sums[2] + sums[3])) + ((sums[4] + sums[5]) + (sums[6] + sums[7]));
}

void multiply(std::span<const float> matrix, std::span<const float> in, std::span<float> out) {
  for (std::size_t row = 0; row < out.size(); ++row) {
    out[row] = dot(matrix.subspan(row * in.size(), in.size()), in);
  }
}

void add(std::span<const float> from, std::span<float> to) {
  for (std::size_t i = 0; i < to.size(); ++i) to[i] += from[i];
}

void rms_norm(std::span<const float> in, std::span<const float> weight, float epsilon,
              std::span<float> out) {
  const float mean_square = dot(in, in) / static_cast<float>(in.size());
  const float scale = 1.0f / std::sqrt(mean_square + epsilon);
  for (std::size_t i = 0; i < in.size(); ++i) out[i] = weight[i] * (in[i] * scale);
}

void softmax(std::span<float> scores) {
  const float largest = *std::ranges::max_element(scores);
  for (float& score : scores) score = std::exp(score - largest);
  const float sum = std::accumulate(scores.begin(), scores.end(), 0.0f);
  for (float& score : scores) score /= sum;
}

void swiglu(std::span<float> gate, std::span<const float> up) {
  for (std::size_t i = 0; i < gate.size(); ++i) {
    gate[i] = gate[i] / (1.0f + std::exp(-gate[i])) * up[i];
  }
}

Rope::Rope(std::uint32_t head_dim, std::uint32_t positions, float base) : head_dim_(head_dim) {
  cosines_.reserve(std::size_t{positions} * head_dim / 2);
  sines_.reserve(cosines_.capacity());
  for (std::uint32_t position = 0; position < positions; ++position) {
    for (std::uint32_t element = 0; element < head_dim; element += 2) {
      const float frequency =
          1.0f / std::pow(base, static_cast<float>(element) / static_cast<float>(head_dim));
      const float angle = static_cast<float>(position) * frequency;
      cosines_.push_back(std::cos(angle));
      sines_.push_back(std::sin(angle));
    }
  }
}

void Rope::rotate(std::span<float> heads, std::uint32_t position) const {
  const std::size_t pairs = head_dim_ / 2;
  const std::span cosines(cosines_.data() + position * pairs, pairs);
  const std::span sines(sines_.data() + position * pairs, pairs);
  for (std::size_t head = 0; head < heads.size(); head += head_dim_) {
    for (std::size_t pair = 0; pair < pairs; ++pair) {
      float& even = heads[head + 2 * pair];
      float& odd = heads[head + 2 * pair + 1];
      const float rotated = even * cosines[pair] - odd * sines[pair];
      odd = even * sines[pair] + odd * cosines[pair];
      even = rotated;
    }
  }
}

}  // namespace hotkv::llama
