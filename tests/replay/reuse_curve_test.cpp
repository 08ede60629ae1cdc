#include "client/tools/bench/reuse_curve.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <fstream>
#include <list>
#include <numeric>
#include <random>
#include <sstream>
#include <string>

#include "client/tools/bench/curve_report.hpp"
#include "client/tools/bench/session_book.hpp"
#include "tests/support/daemon_process.hpp"
#include "tests/support/data_folders.hpp"
#include "tests/support/seeded_random.hpp"

namespace hotkv::bench {
namespace {

using ::testing::HasSubstr;
using ::testing::StartsWith;

TraceRequest request(std::vector<std::uint64_t> block_ids) {
  const auto tokens = static_cast<std::uint32_t>(block_ids.size()) * TraceRequest::kBlockTokens;
  return {0, tokens, 1, std::move(block_ids)};
}

TEST(ReuseCurve, ASessionIsFoundIfItAndAllThatWereUsedSinceFit) {
  const ReuseCurve curve({request({1, 2}), request({10, 11, 12}), request({1, 2, 3})});
  EXPECT_EQ(curve.at(4), (ReuseCurve::Reuse{0, 0}));
  EXPECT_EQ(curve.at(5), (ReuseCurve::Reuse{2, 1}));
  EXPECT_EQ(curve.most(), (ReuseCurve::Reuse{2, 1}));
  EXPECT_EQ(curve.enough_blocks(), 5u);
  EXPECT_EQ(curve.memory_for(1), 5u);
  EXPECT_EQ(curve.memory_for(3), 5u);
  EXPECT_EQ(curve.prompt_blocks(), 8u);
}

TEST(ReuseCurve, WhatIsUsedTwiceCountsOnce) {
  const ReuseCurve curve({request({1}), request({10}), request({10, 11}), request({1, 2})});
  EXPECT_EQ(curve.at(1), (ReuseCurve::Reuse{1, 1}));  // 10 alone
  EXPECT_EQ(curve.at(2), (ReuseCurve::Reuse{1, 1}));
  EXPECT_EQ(curve.at(3), (ReuseCurve::Reuse{2, 2}));  // 1, and 10 and 11 once
}

TEST(ReuseCurve, WithoutReuseThereIsNone) {
  EXPECT_EQ(ReuseCurve({}).most(), ReuseCurve::Reuse{});
  const ReuseCurve curve({request({1}), request({2}), request({})});
  EXPECT_EQ(curve.at(1000), ReuseCurve::Reuse{});
  EXPECT_EQ(curve.enough_blocks(), 0u);
}

// A cache of whole sessions that evicts the one used longest ago until the next one fits.
ReuseCurve::Reuse reuse_of_a_naive_cache(const std::vector<TraceRequest>& trace,
                                         std::uint64_t memory_blocks) {
  struct Cached {
    std::uint32_t session;
    std::uint64_t blocks;
  };
  std::list<Cached> cache;  // used last: in front
  SessionBook book;
  ReuseCurve::Reuse reuse;
  for (const TraceRequest& next : trace) {
    const auto turn = book.next(std::span(next.block_ids).first(next.full_blocks()));
    const auto found = std::ranges::find(cache, turn.session, &Cached::session);
    if (found != cache.end()) {
      reuse.blocks += turn.known_blocks;
      ++reuse.requests;
      cache.erase(found);
    }
    cache.push_front({turn.session, turn.blocks});
    const auto used = [&] {
      return std::accumulate(cache.begin(), cache.end(), std::uint64_t{0},
                             [](std::uint64_t sum, const Cached& c) { return sum + c.blocks; });
    };
    while (used() > memory_blocks) cache.pop_back();
  }
  return reuse;
}

std::vector<TraceRequest> random_trace(std::mt19937& random) {
  constexpr std::uint64_t kLongest = 20;  // no prompt is larger than the memories below
  std::vector<TraceRequest> trace;
  std::vector<std::vector<std::uint64_t>> chains(30);
  std::uint64_t next_id = 1;
  for (int i = 0; i < 500; ++i) {
    auto& chain = chains[random() % chains.size()];
    if (chain.size() > kLongest - 3) chain.clear();
    for (auto more = 1 + random() % 3; more > 0; --more) chain.push_back(next_id++);
    trace.push_back(request(chain));
  }
  return trace;
}

TEST(ReuseCurve, IsWhatANaiveCacheDoesWithEachMemory) {
  std::mt19937 random(testing::random_seed());
  for (int round = 0; round < 10; ++round) {
    const auto trace = random_trace(random);
    const ReuseCurve curve(trace);
    for (std::uint64_t memory = 20; memory < 400; memory += 7) {
      ASSERT_EQ(curve.at(memory), reuse_of_a_naive_cache(trace, memory)) << memory;
    }
  }
}

TEST(ReuseCurve, AnHourOfAChatServiceEndsAtItsKnownTotals) {
  const auto path = testing::traces_folder() / "mooncake_conversation.jsonl";
  if (!std::filesystem::exists(path)) GTEST_SKIP() << "no trace in " << testing::traces_folder();
  const ReuseCurve curve(read_trace(path).value());
  EXPECT_EQ(curve.most(), (ReuseCurve::Reuse{90854, 5286}));
  EXPECT_EQ(curve.prompt_blocks(), 288500u);
}

std::string text_of_file(const std::filesystem::path& path) {
  std::ostringstream text;
  text << std::ifstream(path).rdbuf();
  return text.str();
}

// Eight conversations in turn, in JSON lines: each prompt is a block longer than its last one.
std::string made_up_conversations(int requests) {
  std::ostringstream lines;
  constexpr int kConversations = 8;
  for (int i = 0; i < requests; ++i) {
    const int turn = i / kConversations;
    lines << R"({"timestamp": )" << i << R"(, "input_length": )" << (turn + 1) * 512
          << R"(, "output_length": 1, "hash_ids": [)";
    for (int block = 0; block <= turn; ++block) {
      lines << (block > 0 ? ", " : "") << block * kConversations + i % kConversations;
    }
    lines << "]}\n";
  }
  return lines.str();
}

TEST(CurveTool, WritesTheCurveAndComparesItWithReplays) {
  const testing::TemporaryDirectory folder;
  const auto trace = folder.path() / "a<b\n.jsonl";
  std::ofstream(trace) << made_up_conversations(80);
  const auto csv = folder.path() / "curve.csv";
  const auto svg = folder.path() / "curve.svg";
  const auto result = testing::run_program(
      "hotkv-bench", {"curve", "--trace", trace.string(), "--check", "3", "--bytes-per-token",
                      "1024", "--csv", csv.string(), "--svg", svg.string()});
  EXPECT_EQ(result.exit_code, 0) << result.err;
  EXPECT_THAT(result.out, HasSubstr("MEASURED WITH"));
  const std::string rows = text_of_file(csv);
  EXPECT_THAT(rows, StartsWith("memory_bytes,memory_tokens,blocks_reused,reuse_percent,"));
  EXPECT_EQ(std::ranges::count(rows, '\n'), 1 + 101 + 3);
  // The last of 80 needs its own 9 blocks and seven times 10: then all of (1 + … + 9) * 8 of
  // (1 + … + 10) * 8 blocks are reused, and so says the replay.
  EXPECT_THAT(rows, HasSubstr("\n41418752,40448,360,81.818,72,360\n"));
  const std::string picture = text_of_file(svg);
  EXPECT_THAT(picture, HasSubstr("a&lt;b?.jsonl"));
  EXPECT_THAT(picture, HasSubstr("<polyline"));
  EXPECT_THAT(picture, HasSubstr("<circle"));
}

TEST(CurveTool, RefusesWhatHasNoCurve) {
  const testing::TemporaryDirectory folder;
  const auto trace = folder.path() / "trace";
  std::ofstream(trace) << made_up_conversations(8);
  const auto nothing = testing::run_program("hotkv-bench", {"curve", "--trace", trace.string()});
  EXPECT_EQ(nothing.exit_code, 2);
  EXPECT_THAT(nothing.err, HasSubstr("no request continues another"));
  std::ofstream(trace) << made_up_conversations(16);
  const auto unwritable = testing::run_program(
      "hotkv-bench", {"curve", "--trace", trace.string(), "--csv", "/nowhere-at-all/curve.csv"});
  EXPECT_EQ(unwritable.exit_code, 1);
  EXPECT_THAT(unwritable.err, HasSubstr("/nowhere-at-all/curve.csv"));
}

}  // namespace
}  // namespace hotkv::bench
