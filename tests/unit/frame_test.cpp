#include "daemon/server/frame.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <string>
#include <vector>

namespace hotkv::server {
namespace {

using protocol::FrameHeader;
using protocol::OperationResult;
using protocol::Type;

template <class Operation>
FrameBytes frame_of(Type type, const std::vector<Operation>& operations) {
  FrameHeader header{};
  header.length_bytes =
      static_cast<std::uint32_t>(sizeof header + operations.size() * sizeof(Operation));
  header.type = static_cast<std::uint16_t>(type);
  header.count = static_cast<std::uint16_t>(operations.size());
  header.request_id = 42;
  FrameBytes frame(header.length_bytes);
  std::memcpy(frame.data(), &header, sizeof header);
  std::memcpy(frame.data() + sizeof header, operations.data(),
              operations.size() * sizeof(Operation));
  return frame;
}

protocol::AppendOperation append_of(std::string_view session) {
  protocol::AppendOperation operation{};
  operation.context.epoch = 7;
  operation.context.id_bytes = static_cast<std::uint32_t>(session.size());
  std::memcpy(operation.context.id, session.data(), session.size());
  operation.generation = 3;
  operation.up_to_tokens = 99;
  return operation;
}

FrameHeader header_of(const FrameBytes& frame) {
  FrameHeader header;
  std::memcpy(&header, frame.data(), sizeof header);
  return header;
}

OperationResult result_of(const FrameBytes& frame, std::size_t index) {
  OperationResult result;
  std::memcpy(&result, frame.data() + sizeof(FrameHeader) + index * sizeof result, sizeof result);
  return result;
}

TEST(Frame, OperationsAreDecodedInOrder) {
  const FrameBytes frame =
      frame_of<protocol::AppendOperation>(Type::append, {append_of("a"), append_of("bc")});
  const auto request = decode_frame(frame);
  ASSERT_TRUE(request.has_value()) << request.error().error.message();
  EXPECT_EQ(request->type, Type::append);
  EXPECT_EQ(request->request_id, 42U);
  const auto operations = decode_operations<protocol::AppendOperation>(*request);
  ASSERT_TRUE(operations.has_value());
  ASSERT_EQ(operations->size(), 2U);
  EXPECT_EQ((*operations)[0].session.bytes(), "a");
  EXPECT_EQ((*operations)[1].session.bytes(), "bc");
  EXPECT_EQ((*operations)[1].epoch, Epoch{7});
  EXPECT_EQ((*operations)[1].generation, Generation{3});
  EXPECT_EQ((*operations)[1].up_to, TokenCount{99});
}

TEST(Frame, EveryTruncationOfAFrameIsRefused) {
  const FrameBytes frame = frame_of<protocol::AppendOperation>(Type::append, {append_of("a")});
  for (std::size_t size = 0; size < frame.size(); ++size) {
    const auto request = decode_frame(std::span(frame).first(size));
    ASSERT_FALSE(request.has_value()) << size;
    EXPECT_EQ(request.error().error.code, ErrorCode::protocol_error);
    EXPECT_EQ(request.error().request_id, size < sizeof(FrameHeader) ? 0U : 42U);
  }
}

// A frame is refused or decoded, whichever bit of it is wrong; the sanitizers watch.
TEST(Frame, EverySingleBitFlipIsDecodedOrRefused) {
  FrameBytes frame = frame_of<protocol::AppendOperation>(Type::append, {append_of("session")});
  for (std::size_t bit = 0; bit < frame.size() * 8; ++bit) {
    const auto mask = static_cast<std::byte>(1 << bit % 8);
    frame[bit / 8] ^= mask;
    if (const auto request = decode_frame(frame); request && request->type == Type::append) {
      (void)decode_operations<protocol::AppendOperation>(*request);
    }
    frame[bit / 8] ^= mask;
  }
}

TEST(Frame, AnErrorNamesTheOperationAndTheField) {
  protocol::AppendOperation bad = append_of("a");
  bad.context.id_bytes = 200;
  const FrameBytes frame = frame_of<protocol::AppendOperation>(Type::append, {append_of("a"), bad});
  const auto operations = decode_operations<protocol::AppendOperation>(decode_frame(frame).value());
  ASSERT_FALSE(operations.has_value());
  EXPECT_EQ(operations.error().cause, "operation 1: id_bytes: expected 1 to 128, got 200");
}

TEST(Reply, ShowsPositionsMissesAndErrorsAtTheirPlaces) {
  Reply reply(Type::append, 9, 3);
  reply.set(2, Refusal(Error{ErrorCode::lease_lost, "append", "a", "somebody else has it", 0}));
  reply.set(0, core::Position{SlotIndex{5}, Generation{6}, Tip::at(ChunkIndex{7}), TokenCount{8},
                              TokenCount{16}});
  reply.set(1, Refusal(CacheMiss{.session = SessionId::from("a").value(),
                                 .epoch = Epoch{1},
                                 .expected_length = {},
                                 .reason = MissReason::evicted_ttl,
                                 .known_epoch = Epoch{2},
                                 .known_length = TokenCount{30},
                                 .age_ms = 4000,
                                 .cause = {}}));
  const FrameBytes frame = reply.encode(77);
  const FrameHeader header = header_of(frame);
  EXPECT_EQ(header.length_bytes, frame.size());
  EXPECT_EQ(header.count, 3);
  EXPECT_EQ(header.request_id, 9U);
  EXPECT_EQ(header.boot_token, 77U);
  EXPECT_EQ(header.status, 0U);
  EXPECT_EQ(result_of(frame, 0).generation, 6U);
  EXPECT_EQ(result_of(frame, 0).tip, Tip::at(ChunkIndex{7}).bits());
  const OperationResult miss = result_of(frame, 1);
  EXPECT_EQ(miss.outcome, static_cast<std::uint32_t>(protocol::Outcome::miss));
  EXPECT_EQ(miss.known, protocol::kKnownEpoch | protocol::kKnownLength | protocol::kKnownAge);
  EXPECT_EQ(miss.length_tokens, 30U);
  EXPECT_EQ(miss.age_ms, 4000U);
  const OperationResult error = result_of(frame, 2);
  const auto* text = reinterpret_cast<const char*>(frame.data() + frame.size() - header.text_bytes);
  EXPECT_EQ(std::string(text + error.text_offset, error.text_bytes), "somebody else has it");
}

TEST(Reply, TextsThatNoLongerFitAreLeftOut) {
  Reply reply(Type::open, 1, protocol::kOperationsMax);
  for (std::size_t index = 0; index < protocol::kOperationsMax; ++index) {
    reply.set(index,
              Refusal(Error{ErrorCode::session_busy, "open", "a", std::string(1000, 'x'), 0}));
  }
  const FrameBytes frame = reply.encode(0);
  EXPECT_LE(frame.size(), protocol::kFrameBytesMax);
  EXPECT_EQ(result_of(frame, 0).text_bytes, 1000U);
  const OperationResult last = result_of(frame, protocol::kOperationsMax - 1);
  EXPECT_EQ(last.text_bytes, 0U);
  EXPECT_EQ(last.code, static_cast<std::uint32_t>(ErrorCode::session_busy));
}

TEST(Reply, ARefusalsTextIsCutToTheFrame) {
  const FrameBytes frame = encode_refusal(
      {3, 8, Error{ErrorCode::incompatible_recipe, "attach", "m", std::string(100'000, 'x'), 0}},
      0);
  EXPECT_EQ(frame.size(), protocol::kFrameBytesMax);
  EXPECT_EQ(header_of(frame).type, 3);
  EXPECT_EQ(header_of(frame).request_id, 8U);
}

}  // namespace
}  // namespace hotkv::server
