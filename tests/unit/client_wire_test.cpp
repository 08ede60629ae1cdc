#include "client/library/wire.hpp"

#include <gtest/gtest.h>

#include "client/library/position.hpp"
#include "tests/support/fake_daemon.hpp"

namespace hotkv::client {
namespace {

using fake::Bytes;
using fake::join_bytes;
using fake::session_id;
using protocol::FrameHeader;
using protocol::OperationResult;

FrameHeader header_of(std::size_t body_bytes, std::uint16_t count, std::uint32_t text_bytes = 0) {
  FrameHeader header{};
  header.length_bytes = static_cast<std::uint32_t>(sizeof header + body_bytes);
  header.type = static_cast<std::uint16_t>(protocol::Type::open);
  header.count = count;
  header.request_id = 7;
  header.text_bytes = text_bytes;
  return header;
}

// A reply of one result and the text "why not".
Bytes reply_with(const OperationResult& result, std::string_view text = "why not") {
  Bytes frame = join_bytes(
      header_of(sizeof result + text.size(), 1, static_cast<std::uint32_t>(text.size())), result);
  for (const char c : text) frame.push_back(static_cast<std::byte>(c));
  return frame;
}

TEST(Request, IsAHeaderAndItsOperations) {
  Request request(protocol::Type::close);
  request.add(protocol::CloseOperation{encode_name(session_id("a"), Epoch{3}), 9, 0});
  const Frame frame = std::move(request).seal(42);
  ASSERT_EQ(frame.size(), sizeof(FrameHeader) + sizeof(protocol::CloseOperation));
  FrameHeader header;
  std::memcpy(&header, frame.data(), sizeof header);
  EXPECT_EQ(header.length_bytes, frame.size());
  EXPECT_EQ(header.type, 6);
  EXPECT_EQ(header.count, 1);
  EXPECT_EQ(header.request_id, 42u);
  EXPECT_EQ(header.boot_token, 0u);
  EXPECT_EQ(header.status, 0u);
}

TEST(Reply, CutAnywhereIsAProtocolErrorAndNeverACrash) {
  const Bytes whole = reply_with(OperationResult{});
  ASSERT_TRUE(Reply::parse(whole).has_value());
  for (std::size_t size = 0; size < whole.size(); ++size) {
    const auto reply = Reply::parse(std::span(whole).first(size));
    ASSERT_FALSE(reply.has_value()) << size;
    EXPECT_EQ(reply.error().code, ErrorCode::protocol_error);
  }
}

TEST(Reply, TextLargerThanTheBodyIsRefused) {
  for (const std::uint32_t text : {57u, 0xffff'ffffu}) {
    EXPECT_FALSE(Reply::parse(join_bytes(header_of(56, 1, text), OperationResult{})).has_value());
  }
}

TEST(Reply, CountsSizesAndTypesMustBeThoseOfTheRequest) {
  const auto reply = Reply::parse(reply_with(OperationResult{})).value();
  EXPECT_TRUE(reply.check(protocol::Type::open, 1, sizeof(OperationResult)).has_value());
  EXPECT_FALSE(reply.check(protocol::Type::close, 1, sizeof(OperationResult)).has_value());
  EXPECT_FALSE(reply.check(protocol::Type::open, 2, sizeof(OperationResult)).has_value());
  EXPECT_FALSE(reply.check(protocol::Type::open, 1, sizeof(OperationResult) - 8).has_value());
  const auto lying = Reply::parse(join_bytes(header_of(56, 2), OperationResult{})).value();
  EXPECT_FALSE(lying.check(protocol::Type::open, 2, sizeof(OperationResult)).has_value());
}

TEST(Reply, AFailureOfTheFrameBringsItsCodeAndText) {
  FrameHeader header = header_of(4, 0, 4);
  header.status = static_cast<std::uint32_t>(ErrorCode::shutting_down);
  Bytes frame = join_bytes(header);
  for (const char c : {'g', 'o', 'n', 'e'}) frame.push_back(static_cast<std::byte>(c));
  const auto checked = Reply::parse(frame).value().check(protocol::Type::open, 1, 56);
  ASSERT_FALSE(checked.has_value());
  EXPECT_EQ(checked.error().code, ErrorCode::shutting_down);
  EXPECT_EQ(checked.error().cause, "gone");
}

TEST(Reply, AFailureWithoutAKnownCodeIsAProtocolError) {
  FrameHeader header = header_of(0, 0);
  header.status = 12345;
  EXPECT_EQ(Reply::parse(join_bytes(header)).value().failure().code, ErrorCode::protocol_error);
}

TEST(Reply, TextIsOnlyEverReadWithinTheFrame) {
  OperationResult result{};
  result.text_offset = 4;
  result.text_bytes = 3;
  const auto text = [&] {
    return std::string(Reply::parse(reply_with(result)).value().text_of(result));
  };
  EXPECT_EQ(text(), "not");
  result.text_bytes = 4;
  EXPECT_EQ(text(), "");
  result.text_bytes = 0xffff'ffff;
  EXPECT_EQ(text(), "");
  result.text_offset = 0xffff'fffc;
  EXPECT_EQ(text(), "");
}

TEST(Reply, NumbersThatMeanNothingBecomeAProtocolError) {
  const SessionId session = session_id("a");
  for (const auto& [outcome, code] :
       {std::pair(1u, 0u), {1u, 77u}, {2u, 0u}, {2u, 999u}, {3u, 1u}}) {
    OperationResult result{};
    result.outcome = outcome;
    result.code = code;
    const auto reply = Reply::parse(reply_with(result)).value();
    EXPECT_TRUE(
        refusal_of(reply, result, {"open", session, Epoch{1}}).is(ErrorCode::protocol_error))
        << outcome << " " << code;
  }
}

TEST(Reply, AMissCarriesWhatIsKnownAndNothingElse) {
  const SessionId session = session_id("a");
  OperationResult result{};
  result.outcome = 1;
  result.code = static_cast<std::uint32_t>(MissReason::evicted_lru);
  result.length_tokens = 120;
  result.known_epoch = 5;
  result.age_ms = 10;
  const auto reply = Reply::parse(reply_with(result)).value();
  auto miss = refusal_of(reply, result, {"resolve", session, Epoch{3}, TokenCount{7}}).miss();
  EXPECT_EQ(miss,
            (CacheMiss{session, Epoch{3}, TokenCount{7}, MissReason::evicted_lru, {}, {}, {}, {}}));
  result.known = protocol::kKnownEpoch | protocol::kKnownLength | protocol::kKnownAge;
  miss = refusal_of(reply, result, {"resolve", session, Epoch{3}}).miss();
  EXPECT_EQ(miss.known_epoch, Epoch{5});
  EXPECT_EQ(miss.known_length, TokenCount{120});
  EXPECT_EQ(miss.age_ms, 10u);
}

TEST(Position, NumbersBeyondTheShardAreRefused) {
  Capacities capacities;
  capacities.slot_count = 4;
  capacities.chunk_count = 8;
  OperationResult good{};
  good.slot = 3;
  good.generation = 1;
  good.tip = Tip::at(ChunkIndex{7}).bits();
  good.length_tokens = 5;
  good.writable_tokens = 16;
  EXPECT_TRUE(check_position(good, capacities).has_value());
  const auto refused = [&](auto change) {
    OperationResult bad = good;
    change(bad);
    return !check_position(bad, capacities).has_value();
  };
  EXPECT_TRUE(refused([](auto& r) { r.slot = 4; }));
  EXPECT_TRUE(refused([](auto& r) { r.slot = 0xffff'ffff; }));
  EXPECT_TRUE(refused([](auto& r) { r.tip = 0; }));
  EXPECT_TRUE(refused([](auto& r) { r.tip = Tip::at(ChunkIndex{8}).bits(); }));
  EXPECT_TRUE(refused([](auto& r) { r.tip = 0xffff'ffff; }));
  EXPECT_TRUE(refused([](auto& r) { r.tip = Tip::empty().bits(); })) << "writable without a chunk";
  EXPECT_TRUE(refused([](auto& r) { r.length_tokens = 17; }));
  EXPECT_TRUE(refused([](auto& r) { r.writable_tokens = 0xffff'ffff; }));
}

}  // namespace
}  // namespace hotkv::client
