// Literal bytes of the structs of the control protocol. A struct that changes fails here, so that
// the change is meant.

#include "shared/protocol.hpp"

#include <gtest/gtest.h>

#include "tests/golden/golden_bytes.hpp"

namespace hotkv::protocol {
namespace {

using namespace golden;

constexpr const char* kBumpProtocol =
    "the control protocol changed: bump kVersionMax in shared/protocol.hpp, keep what the old "
    "version sent while kVersionMin admits it, and write the new bytes here";

ContextName filled_context_name() {
  ContextName record{};
  record.epoch = 0x7a79'7877'7675'7473;
  record.id_bytes = 0x7e7d'7c7b;
  put_words(record.id);
  return record;
}

constexpr Place kPlaces[] = {
    {"FrameHeader.length_bytes", offsetof(FrameHeader, length_bytes), 0},
    {"FrameHeader.type", offsetof(FrameHeader, type), 4},
    {"FrameHeader.count", offsetof(FrameHeader, count), 6},
    {"FrameHeader.request_id", offsetof(FrameHeader, request_id), 8},
    {"FrameHeader.boot_token", offsetof(FrameHeader, boot_token), 16},
    {"FrameHeader.status", offsetof(FrameHeader, status), 24},
    {"FrameHeader.text_bytes", offsetof(FrameHeader, text_bytes), 28},
    {"sizeof(FrameHeader)", sizeof(FrameHeader), 32},
    {"HelloRequest.version_min", offsetof(HelloRequest, version_min), 0},
    {"HelloRequest.version_max", offsetof(HelloRequest, version_max), 4},
    {"sizeof(HelloRequest)", sizeof(HelloRequest), 8},
    {"HelloReply.version", offsetof(HelloReply, version), 0},
    {"HelloReply.layout_version", offsetof(HelloReply, layout_version), 4},
    {"sizeof(HelloReply)", sizeof(HelloReply), 8},
    {"AttachRequest.recipe", offsetof(AttachRequest, recipe), 0},
    {"AttachRequest.access", offsetof(AttachRequest, access), 216},
    {"AttachRequest.page", offsetof(AttachRequest, page), 220},
    {"AttachRequest.cookie", offsetof(AttachRequest, cookie), 224},
    {"sizeof(AttachRequest)", sizeof(AttachRequest), 232},
    {"AttachReply.boot_token", offsetof(AttachReply, boot_token), 0},
    {"AttachReply.cookie", offsetof(AttachReply, cookie), 8},
    {"AttachReply.page", offsetof(AttachReply, page), 16},
    {"AttachReply.reserved", offsetof(AttachReply, reserved), 20},
    {"AttachReply.tables_bytes", offsetof(AttachReply, tables_bytes), 24},
    {"AttachReply.arena_bytes", offsetof(AttachReply, arena_bytes), 32},
    {"AttachReply.pages_bytes", offsetof(AttachReply, pages_bytes), 40},
    {"sizeof(AttachReply)", sizeof(AttachReply), 48},
    {"ContextName.epoch", offsetof(ContextName, epoch), 0},
    {"ContextName.id_bytes", offsetof(ContextName, id_bytes), 8},
    {"ContextName.reserved", offsetof(ContextName, reserved), 12},
    {"ContextName.id", offsetof(ContextName, id), 16},
    {"sizeof(ContextName)", sizeof(ContextName), 144},
    {"OpenOperation.context", offsetof(OpenOperation, context), 0},
    {"OpenOperation.fingerprint", offsetof(OpenOperation, fingerprint), 144},
    {"sizeof(OpenOperation)", sizeof(OpenOperation), 176},
    {"AppendOperation.context", offsetof(AppendOperation, context), 0},
    {"AppendOperation.generation", offsetof(AppendOperation, generation), 144},
    {"AppendOperation.up_to_tokens", offsetof(AppendOperation, up_to_tokens), 148},
    {"sizeof(AppendOperation)", sizeof(AppendOperation), 152},
    {"TruncateOperation.context", offsetof(TruncateOperation, context), 0},
    {"TruncateOperation.generation", offsetof(TruncateOperation, generation), 144},
    {"TruncateOperation.from_tokens", offsetof(TruncateOperation, from_tokens), 148},
    {"TruncateOperation.to_tokens", offsetof(TruncateOperation, to_tokens), 152},
    {"TruncateOperation.reserved", offsetof(TruncateOperation, reserved), 156},
    {"sizeof(TruncateOperation)", sizeof(TruncateOperation), 160},
    {"CloseOperation.context", offsetof(CloseOperation, context), 0},
    {"CloseOperation.generation", offsetof(CloseOperation, generation), 144},
    {"CloseOperation.reserved", offsetof(CloseOperation, reserved), 148},
    {"sizeof(CloseOperation)", sizeof(CloseOperation), 152},
    {"ReleaseOperation.context", offsetof(ReleaseOperation, context), 0},
    {"ReleaseOperation.generation", offsetof(ReleaseOperation, generation), 144},
    {"ReleaseOperation.slot", offsetof(ReleaseOperation, slot), 148},
    {"sizeof(ReleaseOperation)", sizeof(ReleaseOperation), 152},
    {"ExplainOperation.context", offsetof(ExplainOperation, context), 0},
    {"ExplainOperation.fingerprint", offsetof(ExplainOperation, fingerprint), 144},
    {"ExplainOperation.expected_tokens", offsetof(ExplainOperation, expected_tokens), 176},
    {"ExplainOperation.match", offsetof(ExplainOperation, match), 180},
    {"sizeof(ExplainOperation)", sizeof(ExplainOperation), 184},
    {"OperationResult.outcome", offsetof(OperationResult, outcome), 0},
    {"OperationResult.code", offsetof(OperationResult, code), 4},
    {"OperationResult.slot", offsetof(OperationResult, slot), 8},
    {"OperationResult.generation", offsetof(OperationResult, generation), 12},
    {"OperationResult.tip", offsetof(OperationResult, tip), 16},
    {"OperationResult.length_tokens", offsetof(OperationResult, length_tokens), 20},
    {"OperationResult.writable_tokens", offsetof(OperationResult, writable_tokens), 24},
    {"OperationResult.known", offsetof(OperationResult, known), 28},
    {"OperationResult.known_epoch", offsetof(OperationResult, known_epoch), 32},
    {"OperationResult.age_ms", offsetof(OperationResult, age_ms), 40},
    {"OperationResult.text_offset", offsetof(OperationResult, text_offset), 48},
    {"OperationResult.text_bytes", offsetof(OperationResult, text_bytes), 52},
    {"sizeof(OperationResult)", sizeof(OperationResult), 56},
};

TEST(ProtocolGolden, FieldsStandWhereTheyStood) {
  for (const Place& place : kPlaces) {
    EXPECT_EQ(place.actual, place.expected) << place.what << ": " << kBumpProtocol;
  }
}

TEST(ProtocolGolden, Versions) {
  EXPECT_EQ(kVersionMin, 1u) << "raised: no installed library speaks the versions below it?";
  EXPECT_EQ(kVersionMax, 1u) << "bumped: the bytes in this file are those of the new version?";
}

TEST(ProtocolGolden, Bounds) {
  EXPECT_EQ(kFrameBytesMax, 65536u) << kBumpProtocol;
  EXPECT_EQ(kOperationsMax, 256u) << kBumpProtocol;
  EXPECT_EQ(kAttachDescriptors, 3u) << kBumpProtocol;
}

TEST(ProtocolGolden, Numbers) {
  EXPECT_EQ(static_cast<std::uint16_t>(Type::hello), 1u) << kBumpProtocol;
  EXPECT_EQ(static_cast<std::uint16_t>(Type::attach), 2u) << kBumpProtocol;
  EXPECT_EQ(static_cast<std::uint16_t>(Type::open), 3u) << kBumpProtocol;
  EXPECT_EQ(static_cast<std::uint16_t>(Type::append), 4u) << kBumpProtocol;
  EXPECT_EQ(static_cast<std::uint16_t>(Type::truncate), 5u) << kBumpProtocol;
  EXPECT_EQ(static_cast<std::uint16_t>(Type::close), 6u) << kBumpProtocol;
  EXPECT_EQ(static_cast<std::uint16_t>(Type::release), 7u) << kBumpProtocol;
  EXPECT_EQ(static_cast<std::uint16_t>(Type::explain), 8u) << kBumpProtocol;
  EXPECT_EQ(static_cast<std::uint32_t>(Outcome::done), 0u) << kBumpProtocol;
  EXPECT_EQ(static_cast<std::uint32_t>(Outcome::miss), 1u) << kBumpProtocol;
  EXPECT_EQ(static_cast<std::uint32_t>(Outcome::error), 2u) << kBumpProtocol;
  EXPECT_EQ(static_cast<std::uint32_t>(Access::read), 1u) << kBumpProtocol;
  EXPECT_EQ(static_cast<std::uint32_t>(Access::write), 2u) << kBumpProtocol;
  EXPECT_EQ(static_cast<std::uint32_t>(LengthMatch::exact), 1u) << kBumpProtocol;
  EXPECT_EQ(static_cast<std::uint32_t>(LengthMatch::at_least), 2u) << kBumpProtocol;
  EXPECT_EQ(static_cast<std::uint32_t>(LengthMatch::any), 3u) << kBumpProtocol;
  EXPECT_EQ(kKnownEpoch, 1u) << kBumpProtocol;
  EXPECT_EQ(kKnownLength, 2u) << kBumpProtocol;
  EXPECT_EQ(kKnownAge, 4u) << kBumpProtocol;
}

TEST(ProtocolGolden, FrameHeader) {
  FrameHeader record{};
  record.length_bytes = 0x8d8c'8b8a;
  record.type = 0x8f8e;
  record.count = 0x9190;
  record.request_id = 0x9998'9796'9594'9392;
  record.boot_token = 0xa1a0'9f9e'9d9c'9b9a;
  record.status = 0xa5a4'a3a2;
  record.text_bytes = 0xa9a8'a7a6;
  EXPECT_EQ(hex_of(record),
            "8a8b8c8d"          // length_bytes
            "8e8f"              // type
            "9091"              // count
            "9293949596979899"  // request_id
            "9a9b9c9d9e9fa0a1"  // boot_token
            "a2a3a4a5"          // status
            "a6a7a8a9"          // text_bytes
            )
      << kBumpProtocol;
}

TEST(ProtocolGolden, HelloRequest) {
  HelloRequest record{};
  record.version_min = 0xb5b4'b3b2;
  record.version_max = 0xb9b8'b7b6;
  EXPECT_EQ(hex_of(record),
            "b2b3b4b5"  // version_min
            "b6b7b8b9"  // version_max
            )
      << kBumpProtocol;
}

TEST(ProtocolGolden, HelloReply) {
  HelloReply record{};
  record.version = 0xdddc'dbda;
  record.layout_version = 0x0201'dfde;
  EXPECT_EQ(hex_of(record),
            "dadbdcdd"  // version
            "dedf0102"  // layout_version
            )
      << kBumpProtocol;
}

TEST(ProtocolGolden, AttachRequest) {
  AttachRequest record{};
  record.recipe = filled_recipe_record();
  record.access = 0x2625'2423;
  record.page = 0x2a29'2827;
  record.cookie = 0x3231'302f'2e2d'2c2b;
  EXPECT_EQ(
      hex_of(record),
      "6c6c616d61000000000000000000000000000000000000000000000000000000"  // recipe.architecture
      "0000000000000000000000000000000000000000000000000000000000000000"
      "6c6c616d612d332d386200000000000000000000000000000000000000000000"  // recipe.model_id
      "0000000000000000000000000000000000000000000000000000000000000000"
      "0000000000000000000000000000000000000000000000000000000000000000"
      "0000000000000000000000000000000000000000000000000000000000000000"
      "a1a2a3a4"          // recipe.dtype
      "a5a6a7a8"          // recipe.kv_heads
      "a9aaabac"          // recipe.key_dim
      "adaeafb0"          // recipe.value_dim
      "b1b2b3b4"          // recipe.first_layer
      "b5b6b7b8"          // recipe.last_layer
      "23242526"          // access
      "2728292a"          // page
      "2b2c2d2e2f303132"  // cookie
      )
      << kBumpProtocol;
}

TEST(ProtocolGolden, AttachReply) {
  AttachReply record{};
  record.boot_token = 0x5251'504f'4e4d'4c4b;
  record.cookie = 0x5a59'5857'5655'5453;
  record.page = 0x5e5d'5c5b;
  record.tables_bytes = 0x6665'6463'6261'605f;
  record.arena_bytes = 0x6e6d'6c6b'6a69'6867;
  record.pages_bytes = 0x7675'7473'7271'706f;
  EXPECT_EQ(hex_of(record),
            "4b4c4d4e4f505152"  // boot_token
            "535455565758595a"  // cookie
            "5b5c5d5e"          // page
            "00000000"          // reserved
            "5f60616263646566"  // tables_bytes
            "6768696a6b6c6d6e"  // arena_bytes
            "6f70717273747576"  // pages_bytes
            )
      << kBumpProtocol;
}

TEST(ProtocolGolden, ContextName) {
  const ContextName record = filled_context_name();
  EXPECT_EQ(hex_of(record),
            "737475767778797a"                                                  // epoch
            "7b7c7d7e"                                                          // id_bytes
            "00000000"                                                          // reserved
            "e0000000000000f0e1000000000000f1e2000000000000f2e3000000000000f3"  // id
            "e4000000000000f4e5000000000000f5e6000000000000f6e7000000000000f7"
            "e8000000000000f8e9000000000000f9ea000000000000faeb000000000000fb"
            "ec000000000000fced000000000000fdee000000000000feef000000000000ff")
      << kBumpProtocol;
}

TEST(ProtocolGolden, OpenOperation) {
  OpenOperation record{};
  record.context = filled_context_name();
  put_bytes(record.fingerprint);
  EXPECT_EQ(hex_of(record),
            "737475767778797a"                                                  // context.epoch
            "7b7c7d7e"                                                          // context.id_bytes
            "00000000"                                                          // context.reserved
            "e0000000000000f0e1000000000000f1e2000000000000f2e3000000000000f3"  // context.id
            "e4000000000000f4e5000000000000f5e6000000000000f6e7000000000000f7"
            "e8000000000000f8e9000000000000f9ea000000000000faeb000000000000fb"
            "ec000000000000fced000000000000fdee000000000000feef000000000000ff"
            "a0a1a2a3a4a5a6a7a8a9aaabacadaeafb0b1b2b3b4b5b6b7b8b9babbbcbdbebf"  // fingerprint
            )
      << kBumpProtocol;
}

TEST(ProtocolGolden, AppendOperation) {
  AppendOperation record{};
  record.context = filled_context_name();
  record.generation = 0xc6c5'c4c3;
  record.up_to_tokens = 0xcac9'c8c7;
  EXPECT_EQ(hex_of(record),
            "737475767778797a"                                                  // context.epoch
            "7b7c7d7e"                                                          // context.id_bytes
            "00000000"                                                          // context.reserved
            "e0000000000000f0e1000000000000f1e2000000000000f2e3000000000000f3"  // context.id
            "e4000000000000f4e5000000000000f5e6000000000000f6e7000000000000f7"
            "e8000000000000f8e9000000000000f9ea000000000000faeb000000000000fb"
            "ec000000000000fced000000000000fdee000000000000feef000000000000ff"
            "c3c4c5c6"  // generation
            "c7c8c9ca"  // up_to_tokens
            )
      << kBumpProtocol;
}

TEST(ProtocolGolden, TruncateOperation) {
  TruncateOperation record{};
  record.context = filled_context_name();
  record.generation = 0x0f0e'0d0c;
  record.from_tokens = 0x1312'1110;
  record.to_tokens = 0x1716'1514;
  EXPECT_EQ(hex_of(record),
            "737475767778797a"                                                  // context.epoch
            "7b7c7d7e"                                                          // context.id_bytes
            "00000000"                                                          // context.reserved
            "e0000000000000f0e1000000000000f1e2000000000000f2e3000000000000f3"  // context.id
            "e4000000000000f4e5000000000000f5e6000000000000f6e7000000000000f7"
            "e8000000000000f8e9000000000000f9ea000000000000faeb000000000000fb"
            "ec000000000000fced000000000000fdee000000000000feef000000000000ff"
            "0c0d0e0f"  // generation
            "10111213"  // from_tokens
            "14151617"  // to_tokens
            "00000000"  // reserved
            )
      << kBumpProtocol;
}

TEST(ProtocolGolden, CloseOperation) {
  CloseOperation record{};
  record.context = filled_context_name();
  record.generation = 0x3736'3534;
  EXPECT_EQ(hex_of(record),
            "737475767778797a"                                                  // context.epoch
            "7b7c7d7e"                                                          // context.id_bytes
            "00000000"                                                          // context.reserved
            "e0000000000000f0e1000000000000f1e2000000000000f2e3000000000000f3"  // context.id
            "e4000000000000f4e5000000000000f5e6000000000000f6e7000000000000f7"
            "e8000000000000f8e9000000000000f9ea000000000000faeb000000000000fb"
            "ec000000000000fced000000000000fdee000000000000feef000000000000ff"
            "34353637"  // generation
            "00000000"  // reserved
            )
      << kBumpProtocol;
}

TEST(ProtocolGolden, ReleaseOperation) {
  ReleaseOperation record{};
  record.context = filled_context_name();
  record.generation = 0x5f5e'5d5c;
  record.slot = 0x6362'6160;
  EXPECT_EQ(hex_of(record),
            "737475767778797a"                                                  // context.epoch
            "7b7c7d7e"                                                          // context.id_bytes
            "00000000"                                                          // context.reserved
            "e0000000000000f0e1000000000000f1e2000000000000f2e3000000000000f3"  // context.id
            "e4000000000000f4e5000000000000f5e6000000000000f6e7000000000000f7"
            "e8000000000000f8e9000000000000f9ea000000000000faeb000000000000fb"
            "ec000000000000fced000000000000fdee000000000000feef000000000000ff"
            "5c5d5e5f"  // generation
            "60616263"  // slot
            )
      << kBumpProtocol;
}

TEST(ProtocolGolden, ExplainOperation) {
  ExplainOperation record{};
  record.context = filled_context_name();
  put_bytes(record.fingerprint);
  record.expected_tokens = 0x8786'8584;
  record.match = 0x8b8a'8988;
  EXPECT_EQ(hex_of(record),
            "737475767778797a"                                                  // context.epoch
            "7b7c7d7e"                                                          // context.id_bytes
            "00000000"                                                          // context.reserved
            "e0000000000000f0e1000000000000f1e2000000000000f2e3000000000000f3"  // context.id
            "e4000000000000f4e5000000000000f5e6000000000000f6e7000000000000f7"
            "e8000000000000f8e9000000000000f9ea000000000000faeb000000000000fb"
            "ec000000000000fced000000000000fdee000000000000feef000000000000ff"
            "a0a1a2a3a4a5a6a7a8a9aaabacadaeafb0b1b2b3b4b5b6b7b8b9babbbcbdbebf"  // fingerprint
            "84858687"                                                          // expected_tokens
            "88898a8b"                                                          // match
            )
      << kBumpProtocol;
}

TEST(ProtocolGolden, OperationResult) {
  OperationResult record{};
  record.outcome = 0xafae'adac;
  record.code = 0xb3b2'b1b0;
  record.slot = 0xb7b6'b5b4;
  record.generation = 0xbbba'b9b8;
  record.tip = 0xbfbe'bdbc;
  record.length_tokens = 0xc3c2'c1c0;
  record.writable_tokens = 0xc7c6'c5c4;
  record.known = 0xcbca'c9c8;
  record.known_epoch = 0xd3d2'd1d0'cfce'cdcc;
  record.age_ms = 0xdbda'd9d8'd7d6'd5d4;
  record.text_offset = 0xdfde'dddc;
  record.text_bytes = 0x0403'0201;
  EXPECT_EQ(hex_of(record),
            "acadaeaf"          // outcome
            "b0b1b2b3"          // code
            "b4b5b6b7"          // slot
            "b8b9babb"          // generation
            "bcbdbebf"          // tip
            "c0c1c2c3"          // length_tokens
            "c4c5c6c7"          // writable_tokens
            "c8c9cacb"          // known
            "cccdcecfd0d1d2d3"  // known_epoch
            "d4d5d6d7d8d9dadb"  // age_ms
            "dcdddedf"          // text_offset
            "01020304"          // text_bytes
            )
      << kBumpProtocol;
}

}  // namespace
}  // namespace hotkv::protocol
