#include "client/tools/bench/trace.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <fstream>
#include <string>

#include "tests/support/daemon_process.hpp"

namespace hotkv::bench {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

class TraceFile : public ::testing::Test {
 protected:
  std::expected<std::vector<TraceRequest>, Error> read(const std::string& content,
                                                       std::size_t limit = ~std::size_t{0}) {
    const auto path = folder.path() / "trace";
    std::ofstream(path, std::ios::binary | std::ios::trunc) << content;
    return read_trace(path, limit);
  }
  std::string refusal(const std::string& content) {
    const auto trace = read(content);
    return trace ? "accepted" : trace.error().message();
  }
  testing::TemporaryDirectory folder;
};

TEST_F(TraceFile, JsonLinesHaveBlocksAndMilliseconds) {
  const auto trace =
      read(
          "{\"timestamp\": 1000, \"input_length\": 1030, \"output_length\": 5, \"hash_ids\": [7, "
          "8, 9]}\n"
          "{\"timestamp\": 3500, \"input_length\": 512, \"output_length\": 1, \"hash_ids\": [7]}\n")
          .value();
  ASSERT_EQ(trace.size(), 2u);
  EXPECT_EQ(trace[0].arrival_s, 0.0);
  EXPECT_EQ(trace[1].arrival_s, 2.5);
  EXPECT_THAT(trace[0].block_ids, ElementsAre(7, 8, 9));
  EXPECT_EQ(trace[0].full_blocks(), 2u) << "1030 tokens fill two blocks of 512";
  EXPECT_EQ(trace[1].full_blocks(), 1u);
  EXPECT_EQ(trace[0].output_tokens, 5u);
}

TEST_F(TraceFile, CsvHasDatesAndNoBlocks) {
  const auto trace = read(
                         "TIMESTAMP,ContextTokens,GeneratedTokens\r\n"
                         "2023-11-16 23:59:59.5000000,374,44\r\n"
                         "2023-11-17 00:00:01.2500000,396,109\r\n")
                         .value();
  ASSERT_EQ(trace.size(), 2u);
  EXPECT_NEAR(trace[1].arrival_s, 1.75, 1e-6);
  EXPECT_EQ(trace[1].input_tokens, 396u);
  EXPECT_EQ(trace[1].output_tokens, 109u);
  EXPECT_EQ(trace[1].full_blocks(), 0u);
}

TEST_F(TraceFile, WhatIsNoTraceIsRefusedByItsLine) {
  const std::string good =
      "{\"timestamp\": 0, \"input_length\": 1, \"output_length\": 1, \"hash_ids\": []}\n";
  EXPECT_THAT(refusal(""), HasSubstr("there is no request"));
  EXPECT_THAT(refusal("hello\n"), HasSubstr("line 1"));
  EXPECT_THAT(refusal(good + "{\"timestamp\": 0}\n"), HasSubstr("line 2"));
  for (const char* length : {"-5", "1e12", "99999999999", "1.5", "null"}) {
    EXPECT_THAT(refusal("{\"timestamp\": 0, \"input_length\": " + std::string(length) +
                        ", \"output_length\": 1, \"hash_ids\": []}\n"),
                HasSubstr("input_length"));
  }
  for (const char* lengths : {"-5,1", "1,-5", "1,99999999999"}) {
    EXPECT_THAT(refusal("TIMESTAMP,ContextTokens,GeneratedTokens\n2023-11-16 00:00:00.0," +
                        std::string(lengths) + "\n"),
                HasSubstr("line 2"));
  }
  EXPECT_THAT(refusal("TIMESTAMP,ContextTokens,GeneratedTokens\n2023-11-16,1,2\n"),
              HasSubstr("line 2"));
  EXPECT_THAT(refusal("TIMESTAMP,ContextTokens,GeneratedTokens\n2023-11-16 00:00:00.0,1,2,3\n"),
              HasSubstr("line 2"));
  EXPECT_EQ(read(good + "broken", 1)->size(), 1u) << "only what is asked for is read";
  EXPECT_EQ(read_trace(folder.path() / "nothing").error().code, ErrorCode::system_error);
}

}  // namespace
}  // namespace hotkv::bench
