#include "client/tools/bench/soak.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <chrono>
#include <fstream>
#include <nlohmann/json.hpp>
#include <random>
#include <string>

#include "client/tools/bench/latency_histogram.hpp"
#include "tests/support/daemon_process.hpp"
#include "tests/support/data_folders.hpp"
#include "tests/support/seeded_random.hpp"

namespace hotkv::bench {
namespace {

using nlohmann::json;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

json soaked(const std::filesystem::path& trace, std::vector<std::string> flags) {
  flags.insert(flags.begin(), {"soak", "--json", "--trace", trace.string()});
  const auto result = testing::run_program("hotkv-bench", flags, std::chrono::seconds(90));
  EXPECT_EQ(result.exit_code, 0) << result.err << result.out;
  return json::parse(result.out, nullptr, false);
}

void expect_all_of_it_happened(const json& report) {
  ASSERT_TRUE(report.is_object());
  EXPECT_EQ(report.at("faults"), json::array()) << report.dump(2);
  EXPECT_EQ(report.at("wrong_bytes"), 0);
  EXPECT_LE(report.at("largest_provisioned_bytes"), report.at("budget_bytes"));
  for (const char* happened : {"requests", "tokens_reused", "tokens_prefilled", "tokens_decoded",
                               "tokens_rolled_back", "bytes_checked"}) {
    EXPECT_GT(report.at(happened), 0) << happened << " of " << report.dump(2);
  }
  EXPECT_GT(report.at("contexts_ended").at("evicted-lru"), 0) << report.dump(2);
}

std::filesystem::path made_up_trace(const std::filesystem::path& folder) {
  const auto trace = folder / "trace.csv";
  std::ofstream file(trace);
  file << "TIMESTAMP,ContextTokens,GeneratedTokens\n";
  std::mt19937 random(testing::random_seed());
  for (int i = 0; i < 600; ++i) {
    file << "2023-11-16 18:15:" << i / 100 << i / 10 % 10 << "." << i % 10 << "0,"
         << random() % 1000 << "," << random() % 60 << "\n";
  }
  return trace;
}

TEST(Soak, MadeUpTrafficForAMoment) {
  const testing::TemporaryDirectory folder;
  expect_all_of_it_happened(
      soaked(made_up_trace(folder.path()), {"--seconds=3", "--speed=max", "--max-bytes=24M"}));
}

TEST(Soak, ThatIsRefusedNearlyEverythingFails) {
  const testing::TemporaryDirectory folder;
  const auto result =
      testing::run_program("hotkv-bench", {"soak", "--trace", made_up_trace(folder.path()).string(),
                                           "--seconds=2", "--speed=max", "--session-cap=1"});
  EXPECT_EQ(result.exit_code, 1) << result.out << result.err;
  EXPECT_THAT(result.out, HasSubstr("most requests were interrupted"));
  EXPECT_THAT(result.out, HasSubstr("refused: "));
}

TEST(Soak, HalfAMinuteOfAConversationService) {
  const auto trace = testing::traces_folder() / "azure_llm_2023_conv.csv";
  if (!std::filesystem::exists(trace)) GTEST_SKIP() << "no trace in " << testing::traces_folder();
  expect_all_of_it_happened(soaked(trace, {"--seconds=30"}));
}

TEST(Soak, RefusesWhatItCannotDo) {
  const auto result = testing::run_program("hotkv-bench", {"soak", "--trace", "/nowhere-at-all"});
  EXPECT_EQ(result.exit_code, 1);
  EXPECT_THAT(result.err, HasSubstr("/nowhere-at-all"));
  EXPECT_EQ(testing::run_program("hotkv-bench", {"soak"}).exit_code, 2);
}

// A soak that could not fail would say nothing.
TEST(SoakReport, NamesEachFault) {
  SoakReport report;
  report.is_sound = true;
  report.totals.tasks = 3;
  report.totals.interrupted = 1;
  report.totals.tokens_decoded = 1;
  report.totals.bytes_checked = 1;
  EXPECT_THAT(report.faults(), ElementsAre());
  report.totals.wrong_bytes = 1;
  report.budget_bytes = 10;
  report.largest_provisioned_bytes = 11;
  report.is_sound = false;
  report.pinned_end = 1;
  report.descriptors_before = 1;
  report.descriptors_end = 2;
  report.own_bytes_end = std::uint64_t{1} << 30;
  report.totals.interrupted = 2;
  report.totals.bytes_checked = 0;
  EXPECT_EQ(report.faults().size(), 8u);
}

TEST(LatencyHistogram, QuantilesAreWithinABucket) {
  LatencyHistogram times;
  EXPECT_EQ(times.quantile_ns(0.5), 0u);
  for (std::uint64_t ns = 1; ns <= 1000; ++ns) times.add(ns * 1000);
  EXPECT_EQ(times.count(), 1000u);
  EXPECT_NEAR(static_cast<double>(times.quantile_ns(0.5)), 500'000, 50'000);
  EXPECT_NEAR(static_cast<double>(times.quantile_ns(0.99)), 990'000, 100'000);
  LatencyHistogram more;
  more.add(~std::uint64_t{0});
  more.add(0);
  more.add(times);
  EXPECT_EQ(more.count(), 1002u);
  EXPECT_GE(more.quantile_ns(1), std::uint64_t{1} << 39);
}

}  // namespace
}  // namespace hotkv::bench
