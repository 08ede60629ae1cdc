#include "client/tools/bench/session_book.hpp"

#include <gtest/gtest.h>

#include <vector>

#include "client/tools/bench/trace.hpp"
#include "tests/support/data_folders.hpp"

namespace hotkv::bench {
namespace {

using Ids = std::vector<std::uint64_t>;

void expect_turn(SessionBook& book, const Ids& ids, std::uint32_t session, std::uint32_t known) {
  const auto turn = book.next(ids);
  EXPECT_EQ(turn.session, session);
  EXPECT_EQ(turn.known_blocks, known);
  EXPECT_EQ(turn.blocks, ids.size());
}

TEST(SessionBook, ARequestContinuesTheSessionOfItsLongestPrefix) {
  SessionBook book;
  expect_turn(book, {1, 2}, 0, 0);
  expect_turn(book, {1, 2, 3, 4}, 0, 2);
  expect_turn(book, {1, 2, 3, 4}, 0, 4);
  expect_turn(book, {1, 2, 9}, 1, 0);  // session 0 has gone on to 4: its chain is no prefix
  expect_turn(book, {1, 2, 3, 4, 5}, 0, 4);
  expect_turn(book, {1, 2, 9, 10}, 1, 3);
  EXPECT_EQ(book.sessions(), 2u);
}

TEST(SessionBook, ASessionWithoutAFullBlockIsContinuedByNobody) {
  SessionBook book;
  expect_turn(book, {}, 0, 0);
  expect_turn(book, {}, 1, 0);
  expect_turn(book, {1}, 2, 0);
}

// Totals that were counted independently of this code.
TEST(SessionBook, AnHourOfAChatServiceHasItsKnownTotals) {
  const auto path = testing::traces_folder() / "mooncake_conversation.jsonl";
  if (!std::filesystem::exists(path)) GTEST_SKIP() << path << " is not there";
  SessionBook book;
  std::size_t requests = 0, continuing = 0, reused = 0, blocks = 0;
  const auto trace = read_trace(path).value();
  for (const TraceRequest& request : trace) {
    const auto turn = book.next(std::span(request.block_ids).first(request.full_blocks()));
    ++requests;
    continuing += turn.known_blocks > 0;
    reused += turn.known_blocks;
    blocks += request.block_ids.size();
  }
  EXPECT_EQ(requests, 12031u);
  EXPECT_EQ(continuing, 5286u);
  EXPECT_EQ(reused, 90854u);
  EXPECT_EQ(blocks, 288500u);
}

}  // namespace
}  // namespace hotkv::bench
