#include "tests/fault/crash_row.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>

namespace hotkv::testing {
namespace {

nlohmann::json quantiles(std::vector<double> values) {
  if (values.empty()) return nullptr;
  std::ranges::sort(values);
  const auto at = [&](double q) {
    const auto last = static_cast<double>(values.size() - 1);
    return values[static_cast<std::size_t>(std::ceil(q * last))];
  };
  return {{"count", values.size()}, {"p50_ms", at(0.5)}, {"p99_ms", at(0.99)}, {"max_ms", at(1)}};
}

}  // namespace

void report(const CrashRow& row) {
  EXPECT_EQ(row.tokens_lost, 0U);
  EXPECT_EQ(row.unpublished_seen, 0U);
  EXPECT_EQ(row.chunks_leaked, 0U);
  EXPECT_GT(row.crashes, 0U);
  EXPECT_FALSE(row.until_next_grant.empty());
  const nlohmann::json figures = {{"number", row.number},
                                  {"crashed", row.crashed},
                                  {"crashes", row.crashes},
                                  {"failed", ::testing::Test::HasFailure()},
                                  {"tokens_lost", row.tokens_lost},
                                  {"unpublished_seen", row.unpublished_seen},
                                  {"chunks_leaked", row.chunks_leaked},
                                  {"others_before", quantiles(row.others_before)},
                                  {"others_after", quantiles(row.others_after)},
                                  {"next_grant", quantiles(row.until_next_grant)}};
  std::printf("%s\n", figures.dump().c_str());
  const char* const folder = std::getenv("HOTKV_CRASH_MATRIX");
  if (folder == nullptr) return;
  const auto path = std::filesystem::path(folder) / (std::to_string(row.number) + ".json");
  EXPECT_TRUE((std::ofstream(path) << figures).flush()) << path;
}

}  // namespace hotkv::testing
