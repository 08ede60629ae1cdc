#include "client/tools/bench/replay.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <fstream>
#include <nlohmann/json.hpp>
#include <numeric>
#include <string>

#include "client/tools/bench/reuse_curve.hpp"
#include "client/tools/bench/session_book.hpp"
#include "tests/support/daemon_process.hpp"
#include "tests/support/data_folders.hpp"

namespace hotkv::bench {
namespace {

using nlohmann::json;

PrivateDaemon daemon_with(const std::string& max_bytes) {
  auto daemon = PrivateDaemon::start(replay_daemon_flags(max_bytes, kSessionCapMax));
  EXPECT_TRUE(daemon) << daemon.error().message();
  return std::move(*daemon);
}

ReplayReport replayed(const std::vector<TraceRequest>& trace, const std::string& max_bytes,
                      std::uint32_t workers) {
  const PrivateDaemon daemon = daemon_with(max_bytes);
  auto report = replay(trace, daemon, {.workers = workers, .speed = 0, .on_progress = {}});
  EXPECT_TRUE(report) << report.error().message();
  EXPECT_TRUE(report->is_sound);
  EXPECT_EQ(report->wrong_bytes, 0u);
  EXPECT_EQ(report->requests, trace.size());
  return *report;
}

// Sixty sessions, each continued in turn by two more blocks.
std::vector<TraceRequest> made_up_trace() {
  std::vector<TraceRequest> trace;
  std::vector<std::vector<std::uint64_t>> chains(60);
  std::uint64_t next_id = 0;
  for (std::size_t i = 0; i < 600; ++i) {
    auto& chain = chains[i * 7 % chains.size()];
    chain.push_back(next_id++);
    chain.push_back(next_id++);
    trace.push_back(
        {static_cast<double>(i), static_cast<std::uint32_t>(chain.size()) * 512, 1, chain});
  }
  return trace;
}

std::vector<TraceRequest> real_prefix() {
  const auto path = testing::traces_folder() / "mooncake_conversation.jsonl";
  if (!std::filesystem::exists(path)) return {};
  return read_trace(path, 800).value();
}

class Replay : public ::testing::TestWithParam<bool> {
 protected:
  void SetUp() override {
    trace = GetParam() ? real_prefix() : made_up_trace();
    if (trace.empty()) GTEST_SKIP() << "the trace is not in " << testing::traces_folder();
    SessionBook book;
    for (const TraceRequest& request : trace) {
      const auto turn = book.next(std::span(request.block_ids).first(request.full_blocks()));
      continuing += turn.known_blocks > 0;
      known_blocks += turn.known_blocks;
    }
  }
  std::vector<TraceRequest> trace;
  std::uint64_t continuing = 0;
  std::uint64_t known_blocks = 0;
};

TEST_P(Replay, WithoutABoundEverythingThatWasCachedIsReused) {
  for (const std::uint32_t workers : {1u, 4u}) {
    const ReplayReport report = replayed(trace, "1G", workers);
    EXPECT_EQ(report.continuing, continuing);
    EXPECT_EQ(report.continued, continuing);
    EXPECT_EQ(report.blocks_reused, known_blocks);
    EXPECT_TRUE(report.misses.empty() && report.errors.empty() && report.evictions.empty());
  }
}

TEST_P(Replay, WithATenthOfTheMemoryTheBudgetHoldsAndEveryMissHasItsReason) {
  const std::uint64_t whole = replayed(trace, "1G", 2).peak_provisioned_bytes;
  ReplayReport one_worker;
  for (const std::uint32_t workers : {1u, 4u}) {
    const ReplayReport report = replayed(trace, std::to_string(whole / 10), workers);
    EXPECT_LE(report.peak_provisioned_bytes, whole / 10);
    EXPECT_EQ(report.continuing, continuing);
    EXPECT_LT(report.continued, continuing);
    EXPECT_TRUE(report.errors.empty()) << text_of(report);
    const auto missed =
        std::accumulate(report.misses.begin(), report.misses.end(), std::uint64_t{0},
                        [](std::uint64_t sum, const auto& entry) { return sum + entry.second; });
    EXPECT_EQ(missed, continuing - report.continued);
    for (const auto& [reason, count] : report.misses) EXPECT_EQ(reason, "evicted-lru") << count;
    EXPECT_GT(report.evictions.at("evicted-lru"), 0u);
    // The same order of requests gives the same result, however many workers there are.
    if (workers == 1) one_worker = report;
    EXPECT_EQ(report.blocks_reused, one_worker.blocks_reused);
    EXPECT_EQ(report.tokens_computed, one_worker.tokens_computed);
    EXPECT_EQ(report.misses, one_worker.misses);
    EXPECT_EQ(report.evictions, one_worker.evictions);
  }
}

TEST_P(Replay, WithLessMemoryExactlyThatIsReusedWhichTheCurveSays) {
  const ReuseCurve curve(trace);
  for (const std::uint64_t part : {3u, 8u}) {
    const std::uint64_t blocks = curve.enough_blocks() / part;
    const ReplayReport report = replayed(trace, std::to_string(blocks * replay_block_bytes()), 2);
    EXPECT_EQ((ReuseCurve::Reuse{report.blocks_reused, report.continued}), curve.at(blocks));
    EXPECT_LT(report.blocks_reused, known_blocks);
    EXPECT_GT(report.blocks_reused, 0u);
  }
}

INSTANTIATE_TEST_SUITE_P(Traces, Replay, ::testing::Values(false, true), [](const auto& instance) {
  return std::string(instance.param ? "Recorded" : "MadeUp");
});

TEST(ReplayTool, PrintsTheReportAndRefusesWhatItCannotDo) {
  const testing::TemporaryDirectory folder;
  const std::string trace = (folder.path() / "trace.csv").string();
  std::ofstream(trace)
      << "TIMESTAMP,ContextTokens,GeneratedTokens\n2023-11-16 18:15:46.68,374,44\n";
  const auto good = testing::run_program("hotkv-bench", {"replay", "--trace", trace, "--json"});
  EXPECT_EQ(good.exit_code, 0) << good.err;
  EXPECT_EQ(json::parse(good.out).at("requests"), 1);
  const auto table = testing::run_program("hotkv-bench", {"replay", "--trace", trace});
  EXPECT_THAT(table.out, ::testing::HasSubstr("wrong bytes"));
  const auto fails = [&](std::vector<std::string> arguments, int exit_code, const char* text) {
    arguments.insert(arguments.begin(), "replay");
    const auto result = testing::run_program("hotkv-bench", arguments);
    EXPECT_EQ(result.exit_code, exit_code) << result.err;
    EXPECT_THAT(result.err, ::testing::HasSubstr(text));
  };
  fails({"--trace", trace + "x"}, 1, "No such file");
  fails({"--trace", trace, "--speed", "0"}, 2, "read --speed");
  fails({"--trace", trace, "--workers", "0"}, 2, "--workers");
  fails({"--trace", trace, "--max-bytes", "lots"}, 1, "it did not come up");
}

}  // namespace
}  // namespace hotkv::bench
