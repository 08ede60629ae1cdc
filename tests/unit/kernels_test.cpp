#include "client/adapter/llama/kernels.hpp"

#include <gtest/gtest.h>

#include <cmath>
#include <numeric>
#include <vector>

namespace hotkv::llama {
namespace {

std::vector<float> some_values(std::size_t count, float phase) {
  std::vector<float> values(count);
  for (std::size_t i = 0; i < count; ++i) values[i] = std::sin(static_cast<float>(i) + phase);
  return values;
}

TEST(Kernels, DotIsTheSumOfProductsForEverySize) {
  for (std::size_t size = 0; size <= 40; ++size) {
    const auto a = some_values(size, 0.5f), b = some_values(size, 2.0f);
    double sum = 0;
    for (std::size_t i = 0; i < size; ++i) sum += double{a[i]} * double{b[i]};
    EXPECT_NEAR(dot(a, b), sum, 1e-5) << size;
  }
}

TEST(Kernels, MultiplyTakesOneRowForEachOutput) {
  const std::vector<float> matrix{1, 2, 3, 4, 5, 6};  // [2][3]
  std::vector<float> out(2);
  multiply(matrix, std::vector<float>{1, 0, -1}, out);
  EXPECT_EQ(out, (std::vector<float>{-2, -2}));
}

TEST(Kernels, RmsNormScalesToUnitMeanSquare) {
  const std::vector<float> in{3, -4, 0, 0};
  std::vector<float> out(4);
  rms_norm(in, std::vector<float>{1, 1, 1, 2}, 0.0f, out);
  EXPECT_FLOAT_EQ(out[0], 1.2f);  // 3 / sqrt(25 / 4)
  EXPECT_FLOAT_EQ(out[1], -1.6f);
  std::vector<float> zeros(4);
  rms_norm(zeros, std::vector<float>(4, 1.0f), 1e-5f, zeros);
  EXPECT_EQ(zeros, std::vector<float>(4)) << "epsilon keeps it from dividing by nothing";
}

TEST(Kernels, SoftmaxSumsToOneAndKeepsToDifferences) {
  std::vector<float> scores{1, 2, 3}, shifted{101, 102, 103};
  softmax(scores);
  softmax(shifted);
  EXPECT_FLOAT_EQ(std::accumulate(scores.begin(), scores.end(), 0.0f), 1.0f);
  EXPECT_EQ(scores, shifted);
  EXPECT_NEAR(scores[2] / scores[1], std::exp(1.0f), 1e-5);
  std::vector<float> masked{0, -INFINITY};
  softmax(masked);
  EXPECT_EQ(masked, (std::vector<float>{1, 0}));
}

TEST(Kernels, SwiGluGates) {
  std::vector<float> gate{0, 10, -10, 1, -1};
  swiglu(gate, std::vector<float>{5, 2, 2, 1, 1});
  EXPECT_EQ(gate[0], 0);
  EXPECT_NEAR(gate[1], 20, 1e-2);
  EXPECT_NEAR(gate[2], 0, 1e-2);
  EXPECT_NEAR(gate[3], 0.731059, 1e-5);  // 1 / (1 + 1/e)
  EXPECT_NEAR(gate[4], -0.268941, 1e-5);
}

TEST(Rope, LeavesPositionZeroAndEveryLengthAsTheyAre) {
  const Rope rope(8, 100, 10000);
  const auto before = some_values(24, 1);  // three heads
  auto rotated = before;
  rope.rotate(rotated, 0);
  EXPECT_EQ(rotated, before);
  rope.rotate(rotated, 77);
  EXPECT_NE(rotated, before);
  EXPECT_NEAR(dot(rotated, rotated), dot(before, before), 1e-5);
}

TEST(Rope, RotatesAdjacentPairsByTheirOwnAngle) {
  const Rope rope(4, 10, 10000);
  std::vector<float> head{1, 0, 1, 0};
  rope.rotate(head, 3);
  EXPECT_FLOAT_EQ(head[0], std::cos(3.0f));
  EXPECT_FLOAT_EQ(head[1], std::sin(3.0f));
  EXPECT_FLOAT_EQ(head[2], std::cos(0.03f));  // 3 * 10000^(-2/4)
  EXPECT_FLOAT_EQ(head[3], std::sin(0.03f));
}

// What makes it a position: a score depends on how far query and key are apart, on nothing else.
TEST(Rope, ScoresDependOnDistanceAlone) {
  const Rope rope(8, 300, 10000);
  const auto score = [&](std::uint32_t query_at, std::uint32_t key_at) {
    auto query = some_values(8, 1), key = some_values(8, 4);
    rope.rotate(query, query_at);
    rope.rotate(key, key_at);
    return dot(query, key);
  };
  EXPECT_NEAR(score(20, 13), score(207, 200), 1e-4);
  EXPECT_GT(std::abs(score(20, 13) - score(20, 14)), 1e-2);
}

}  // namespace
}  // namespace hotkv::llama
