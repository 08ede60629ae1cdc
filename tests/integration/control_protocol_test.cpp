// What clients may say to a running daemon, right and wrong, without the library.

#include <fcntl.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <algorithm>
#include <limits>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include "tests/support/daemon_process.hpp"
#include "tests/support/raw_client.hpp"

namespace hotkv::testing {
namespace {

using namespace protocol;
using Results = std::vector<OperationResult>;

class ControlProtocol : public ::testing::Test {
 protected:
  void SetUp() override { ASSERT_TRUE(daemon_.wait_ready()) << daemon_.err(); }
  // Whatever a test sends: the daemon lives, and its tables are sound.
  void TearDown() override {
    const std::string verdict = exchange_text(
        daemon_.admin_path(), "GET /verify HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n");
    EXPECT_NE(verdict.find("\"sound\": true"), std::string::npos) << verdict << daemon_.err();
    EXPECT_EQ(daemon_.stop(), 0) << daemon_.err();
  }

  RawClient connected() { return RawClient(daemon_.control_path()); }
  RawClient attached(Access access = Access::write, const Recipe& recipe = small_recipe()) {
    return attached_client(daemon_.control_path(), access, recipe);
  }

  DaemonProcess daemon_{{.flags = {"--max-bytes=16M", "--hugepages=off", "--chunk-tokens=16"}}};
};

// ---- frames -------------------------------------------------------------------------------------

Bytes raw_frame(std::uint32_t length, std::uint16_t type, std::uint16_t count, std::size_t size) {
  FrameHeader header{};
  header.length_bytes = length;
  header.type = type;
  header.count = count;
  header.request_id = 77;
  Bytes frame(std::max(size, sizeof header));
  std::memcpy(frame.data(), &header, sizeof header);
  frame.resize(size);
  return frame;
}

// A right OPEN with one thing changed.
template <class Change>
Bytes changed_open(Change change) {
  OpenOperation operation{};
  operation.context = context_name("session", 1);
  change(operation);
  return make_frame<OpenOperation>(Type::open, 77, {operation});
}

template <class Change>
Bytes changed_header(Change change) {
  Bytes frame = changed_open([](OpenOperation&) {});
  FrameHeader header;
  std::memcpy(&header, frame.data(), sizeof header);
  change(header);
  std::memcpy(frame.data(), &header, sizeof header);
  return frame;
}

TEST_F(ControlProtocol, EveryMalformedFrameIsRefusedAndTheConnectionGoesOn) {
  constexpr std::uint32_t kOpenFrame = sizeof(FrameHeader) + sizeof(OpenOperation);
  const std::vector<std::pair<std::string, Bytes>> frames{
      {"empty", {}},
      {"one byte", Bytes(1)},
      {"31 bytes", raw_frame(31, 3, 1, 31)},
      {"length too small", raw_frame(0, 3, 1, kOpenFrame)},
      {"length too large", raw_frame(kOpenFrame + 1, 3, 1, kOpenFrame)},
      {"length of 2^32 - 1", raw_frame(0xffff'ffff, 3, 1, kOpenFrame)},
      {"type 0", raw_frame(32, 0, 1, 32)},
      {"type 9", raw_frame(32, 9, 1, 32)},
      {"type 65535", raw_frame(32, 65535, 1, 32)},
      {"count 0", raw_frame(32, 3, 0, 32)},
      {"count 257",
       raw_frame(32 + 257 * sizeof(OpenOperation), 3, 257, 32 + 257 * sizeof(OpenOperation))},
      {"count 65535, no body", raw_frame(32, 3, 65535, 32)},
      {"count 2, one body", raw_frame(kOpenFrame, 3, 2, kOpenFrame)},
      {"two HELLOs in one", raw_frame(48, 1, 2, 48)},
      {"status set", changed_header([](FrameHeader& header) { header.status = 1; })},
      {"text announced", changed_header([](FrameHeader& header) { header.text_bytes = 1; })},
      {"boot token set", changed_header([](FrameHeader& header) { header.boot_token = 1; })},
      {"id of 0 bytes", changed_open([](OpenOperation& open) { open.context.id_bytes = 0; })},
      {"id of 129 bytes", changed_open([](OpenOperation& open) { open.context.id_bytes = 129; })},
      {"id of 2^32 - 1 bytes",
       changed_open([](OpenOperation& open) { open.context.id_bytes = 0xffff'ffff; })},
      {"bytes behind the id", changed_open([](OpenOperation& open) { open.context.id[15] = 1; })},
      {"reserved set", changed_open([](OpenOperation& open) { open.context.reserved = 1; })},
  };
  RawClient client = attached();
  for (const auto& [name, frame] : frames) {
    const RawReply reply = client.ask(frame);
    EXPECT_TRUE(reply.is_error(ErrorCode::protocol_error)) << name << ": " << reply.header.status;
    EXPECT_FALSE(reply.text.empty()) << name;
    EXPECT_EQ(reply.header.request_id, frame.size() < 32 ? 0U : 77U) << name;
  }
  EXPECT_TRUE(is_done(client.open("session", 1)));
}

TEST_F(ControlProtocol, OneBadOperationRefusesTheWholeFrameBeforeAnythingIsDone) {
  RawClient client = attached();
  OpenOperation good{};
  good.context = context_name("good", 1);
  std::ranges::copy(client.fingerprint(), good.fingerprint);
  OpenOperation bad = good;
  bad.context.id_bytes = 0;
  const RawReply reply = client.ask(make_frame<OpenOperation>(Type::open, 5, {good, bad}));
  EXPECT_TRUE(reply.is_error(ErrorCode::protocol_error));
  EXPECT_NE(reply.text.find("operation 1"), std::string::npos) << reply.text;
  EXPECT_TRUE(is_miss(client.explain("good", 1, 0), MissReason::unknown_session));
}

TEST_F(ControlProtocol, AFrameOverTheLimitIsRefusedAndTheConnectionGoesOn) {
  RawClient client = connected();
  EXPECT_TRUE(client.ask(Bytes(kFrameBytesMax + 1)).is_error(ErrorCode::protocol_error));
  EXPECT_EQ(client.hello().header.status, 0U);
}

TEST_F(ControlProtocol, EnumeratorsThatDoNotExistAreRefused) {
  RawClient client = connected();
  client.hello();
  AttachRequest attach{};
  attach.recipe = encode_recipe(small_recipe());
  for (const std::uint32_t access : {0U, 3U, 0xffff'ffffU}) {
    attach.access = access;
    EXPECT_TRUE(client.ask(make_frame<AttachRequest>(Type::attach, 1, {attach}))
                    .is_error(ErrorCode::protocol_error));
  }
  client.stay_alive(client.attach(small_recipe(), Access::read));
  ExplainOperation explain{};
  explain.context = context_name("a", 1);
  for (const std::uint32_t match : {0U, 4U}) {
    explain.match = match;
    EXPECT_TRUE(client.ask(make_frame<ExplainOperation>(Type::explain, 1, {explain}))
                    .is_error(ErrorCode::protocol_error));
  }
}

// ---- order --------------------------------------------------------------------------------------

TEST_F(ControlProtocol, HelloComesFirstAndOnce) {
  RawClient client = connected();
  EXPECT_TRUE(client.attach(small_recipe(), Access::write).is_error(ErrorCode::protocol_error));
  const RawReply hello = client.hello();
  EXPECT_EQ(hello.body_as<HelloReply>().version, kVersionMax);
  EXPECT_EQ(hello.body_as<HelloReply>().layout_version, kLayoutVersion);
  EXPECT_TRUE(client.hello().is_error(ErrorCode::protocol_error));
}

TEST_F(ControlProtocol, VersionsThatDoNotOverlapAreRefusedWithBothRanges) {
  RawClient client = connected();
  const RawReply reply =
      client.ask(make_frame<HelloRequest>(Type::hello, 1, {{kVersionMax + 1, kVersionMax + 4}}));
  EXPECT_TRUE(reply.is_error(ErrorCode::unsupported_version));
  EXPECT_NE(reply.text.find("2 to 5"), std::string::npos) << reply.text;
  EXPECT_EQ(client.hello().header.status, 0U);
}

TEST_F(ControlProtocol, OperationsBeforeAttachAreRefused) {
  RawClient client = connected();
  client.hello();
  EXPECT_TRUE(client.ask(changed_open([](OpenOperation&) {})).is_error(ErrorCode::not_attached));
}

// FR-076: one connection is one client and gets its descriptors once; a second ATTACH is told so.
TEST_F(ControlProtocol, ASecondAttachIsRefusedAndTheFirstOneStands) {
  RawClient client = attached();
  EXPECT_TRUE(
      client.attach(small_recipe("other"), Access::write).is_error(ErrorCode::already_attached));
  RawClient again = attached();
  EXPECT_TRUE(is_done(again.open("session", 1)));
}

TEST_F(ControlProtocol, AnotherRecipeOfTheSameShardIsRefusedByField) {
  const RawClient first = attached();
  RecipeFields fields = small_recipe().fields();
  fields.kv_heads = 4;
  fields.dtype = DType::bf16;
  RawClient client = connected();
  client.hello();
  const RawReply reply = client.attach(Recipe::make(fields).value(), Access::write);
  EXPECT_TRUE(reply.is_error(ErrorCode::incompatible_recipe));
  EXPECT_NE(reply.text.find("kv_heads"), std::string::npos) << reply.text;
  EXPECT_NE(reply.text.find("dtype"), std::string::npos) << reply.text;
  EXPECT_EQ(client.attach(small_recipe(), Access::write).header.status, 0U);
}

TEST_F(ControlProtocol, AnUncertifiedArchitectureIsRefused) {
  RecipeFields fields = small_recipe().fields();
  fields.architecture = "mamba";
  const std::vector<std::string> any{"mamba"};
  RawClient client = connected();
  client.hello();
  EXPECT_TRUE(client.attach(Recipe::make(fields, any).value(), Access::write)
                  .is_error(ErrorCode::uncertified_architecture));
}

// ---- resources ----------------------------------------------------------------------------------

// FR-074: a thousand requests with 253 descriptors each leave the daemon with as many as before.
TEST_F(ControlProtocol, DescriptorsThatClientsPassAreDropped) {
  RawClient client = attached();
  const UniqueFd null(::open("/dev/null", O_RDONLY | O_CLOEXEC));
  // Answered after the daemon has closed its copies of what ATTACH's reply passed.
  (void)client.ask(Bytes(1));
  const int before = daemon_.open_descriptors();
  if (before < 0) GTEST_SKIP() << "the daemon's descriptors cannot be seen by this user";
  constexpr std::size_t kMostThatTheKernelPasses = 253;
  for (int round = 0; round < 500; ++round) {
    ASSERT_TRUE(client.send_with_descriptors(changed_open([](OpenOperation&) {}), null.get(),
                                             kMostThatTheKernelPasses));
    ASSERT_TRUE(client.receive().has_value());
    ASSERT_TRUE(client.send_with_descriptors(Bytes(5), null.get(), kMostThatTheKernelPasses));
    ASSERT_TRUE(client.receive().has_value());
  }
  EXPECT_EQ(daemon_.open_descriptors(), before);
}

// FR-080: also while descriptors are on their way to it.
TEST_F(ControlProtocol, ClientsThatHangUpInTheMiddleCostNothing) {
  RawClient steady = attached();
  (void)steady.ask(Bytes(1));
  const int before = daemon_.open_descriptors();
  for (int round = 0; round < 200; ++round) {
    RawClient client = connected();
    client.send(make_frame<HelloRequest>(Type::hello, 1, {{1, 1}}));
    AttachRequest attach{};
    attach.recipe = encode_recipe(small_recipe());
    attach.access = 2;
    client.send(make_frame<AttachRequest>(Type::attach, 2, {attach}));
    if (round % 2 == 0) (void)client.receive();
  }
  // Each of these is answered after the hang-ups before it.
  for (int round = 0; round < 300 && daemon_.open_descriptors() > before; ++round) {
    ASSERT_EQ(RawClient(daemon_.control_path()).hello().header.status, 0U);
  }
  EXPECT_LE(daemon_.open_descriptors(), before + 1);
  EXPECT_TRUE(is_done(steady.open("session", 1)));
}

// FR-079: its queue is bounded and its end is counted.
TEST_F(ControlProtocol, AClientThatDoesNotReadIsDisconnectedAndTheOthersAreServed) {
  RawClient deaf = connected();
  RawClient other = attached();
  constexpr int kFarMoreThanFits = 200'000;
  int sent = 0;
  while (sent < kFarMoreThanFits && deaf.send(Bytes(1))) ++sent;
  EXPECT_LT(sent, kFarMoreThanFits);
  EXPECT_TRUE(is_done(other.open("session", 1)));
  EXPECT_NE(exchange_text(daemon_.admin_path(), "GET /status HTTP/1.0\r\n\r\n")
                .find("\"not-reading\": 1"),
            std::string::npos);
}

TEST(ControlServer, OverTheLimitAConnectionIsRefusedInWordsAndLaterOnesAreServed) {
  DaemonProcess daemon({.flags = {"--max-bytes=16M", "--hugepages=off", "--max-connections=2"}});
  ASSERT_TRUE(daemon.wait_ready()) << daemon.err();
  RawClient first(daemon.control_path());
  RawClient second(daemon.control_path());
  ASSERT_EQ(first.hello().header.status, 0U);
  ASSERT_EQ(second.hello().header.status, 0U);
  RawClient third(daemon.control_path());
  const auto refusal = third.receive();
  ASSERT_TRUE(refusal.has_value());
  EXPECT_TRUE(refusal->is_error(ErrorCode::too_many_connections)) << refusal->text;
  EXPECT_FALSE(third.receive().has_value());

  first.hang_up();
  bool served = false;
  for (int attempt = 0; attempt < 1000 && !served; ++attempt) {
    RawClient later(daemon.control_path());
    const auto reply = later.ask(make_frame<HelloRequest>(Type::hello, 1, {{1, 1}}));
    served = reply.header.type != 0 && reply.header.status == 0;
  }
  EXPECT_TRUE(served);
  EXPECT_EQ(daemon.stop(), 0);
}

// ---- operations ---------------------------------------------------------------------------------

TEST_F(ControlProtocol, OpenAppendTruncateCloseAndReleaseAnswerWhereTheContextStands) {
  RawClient client = attached();
  const OperationResult opened = client.open("session", 7);
  ASSERT_TRUE(is_done(opened));
  EXPECT_EQ(opened.length_tokens, 0U);
  EXPECT_TRUE(is_error(client.open("session", 6), ErrorCode::stale_epoch));
  const OperationResult appended = client.append("session", 7, opened.generation, 20);
  ASSERT_TRUE(is_done(appended));
  EXPECT_GE(appended.writable_tokens, 20U);
  EXPECT_EQ(appended.length_tokens, 0U);
  EXPECT_TRUE(is_error(client.truncate("session", 7, appended.generation, 5, 3),
                       ErrorCode::length_mismatch));
  EXPECT_TRUE(is_miss(client.explain("session", 7, 20), MissReason::seq_len_mismatch));
  EXPECT_TRUE(is_done(client.close("session", 7, appended.generation)));
  EXPECT_TRUE(
      is_error(client.append("session", 7, appended.generation, 40), ErrorCode::lease_lost));
  EXPECT_TRUE(is_done(client.release("session", 7)));
  EXPECT_TRUE(is_miss(client.release("session", 7), MissReason::released));
  EXPECT_TRUE(is_miss(client.explain("session", 7, 0), MissReason::released));
}

TEST_F(ControlProtocol, AMessageOf256AppendsThatWaitForMemoryIsAnsweredOnceAndInOrder) {
  RawClient client = attached();
  std::vector<OpenOperation> opens(kOperationsMax);
  for (std::size_t index = 0; index < opens.size(); ++index) {
    opens[index].context = context_name("session-" + std::to_string(index), 1);
    std::ranges::copy(client.fingerprint(), opens[index].fingerprint);
  }
  const Results opened = client.operate(Type::open, opens);
  ASSERT_EQ(opened.size(), kOperationsMax);
  std::vector<AppendOperation> appends(kOperationsMax);
  for (std::size_t index = 0; index < appends.size(); ++index) {
    ASSERT_TRUE(is_done(opened[index])) << index;
    appends[index] = {opens[index].context, opened[index].generation,
                      static_cast<std::uint32_t>(1 + index % 40)};
  }
  const Results granted = client.operate(Type::append, appends);
  ASSERT_EQ(granted.size(), kOperationsMax);
  for (std::size_t index = 0; index < granted.size(); ++index) {
    EXPECT_TRUE(is_done(granted[index])) << index << " code " << granted[index].code;
    EXPECT_EQ(granted[index].slot, opened[index].slot) << index;
    EXPECT_GE(granted[index].writable_tokens, 1 + index % 40) << index;
  }
}

// FR-083: pairs of wild lengths and generations.
TEST_F(ControlProtocol, WildNumbersAreAnsweredAndHurtNothing) {
  RawClient client = attached();
  const OperationResult opened = client.open("session", std::numeric_limits<std::uint64_t>::max());
  ASSERT_TRUE(is_done(opened));
  constexpr std::uint64_t kEpoch = std::numeric_limits<std::uint64_t>::max();
  const std::vector<std::uint32_t> wild{
      0, 1, 15, 16, 17, 0x7fff'fffe, 0x7fff'ffff, 0x8000'0000, 0xffff'fff0, 0xffff'ffff};
  for (const std::uint32_t a : wild) {
    for (const std::uint32_t b : wild) {
      EXPECT_NE(client.append("session", kEpoch, a, b).outcome, 0xffff'ffffU);
      EXPECT_NE(client.append("session", kEpoch, opened.generation, b).outcome, 0xffff'ffffU);
      EXPECT_NE(client.truncate("session", kEpoch, opened.generation, a, b).outcome, 0xffff'ffffU);
      EXPECT_NE(client.close("session", kEpoch, a == opened.generation ? 0 : a).outcome,
                0xffff'ffffU);
      EXPECT_NE(client.explain("session", a, b).outcome, 0xffff'ffffU);
    }
  }
  EXPECT_TRUE(is_error(client.append("session", kEpoch, opened.generation, 0x7fff'ffff),
                       ErrorCode::budget_exceeded));
}

// Right frames of every type with a few bytes changed, most of them past the header's checks.
// FR-083: and any bytes at all.
TEST_F(ControlProtocol, MutatedFramesAreAllAnswered) {
  RawClient client = attached();
  const std::uint32_t generation = client.open("session", 1).generation;
  const ContextName name = context_name("session", 1);
  const std::vector<Bytes> frames{
      make_frame<HelloRequest>(Type::hello, 1, {{1, 1}}),
      make_frame<AttachRequest>(Type::attach, 1, {{encode_recipe(small_recipe()), 2, 0, 0}}),
      make_frame<OpenOperation>(Type::open, 1, {{name, {}}}),
      make_frame<AppendOperation>(Type::append, 1, {{name, generation, 5}}),
      make_frame<TruncateOperation>(Type::truncate, 1, {{name, generation, 0, 0, 0}}),
      make_frame<CloseOperation>(Type::close, 1, {{name, generation, 0}}),
      make_frame<ReleaseOperation>(Type::release, 1, {{name, 0, 0}}),
      make_frame<ExplainOperation>(Type::explain, 1, {{name, {}, 5, 1}})};
  constexpr std::uint32_t kSeed = 20240229;
  std::mt19937 random(kSeed);
  for (int round = 0; round < 5000; ++round) {
    Bytes frame = frames[random() % frames.size()];
    for (std::size_t change = random() % 4; change > 0; --change) {
      frame[sizeof(FrameHeader) + random() % (frame.size() - sizeof(FrameHeader))] =
          static_cast<std::byte>(random() % 4 == 0 ? random() : random() % 3);
    }
    ASSERT_TRUE(client.send(frame)) << round;
    ASSERT_TRUE(client.receive().has_value()) << round;
  }
  EXPECT_TRUE(is_done(attached().open("another", 1)));
}

TEST_F(ControlProtocol, TextsThatDoNotFitAreLeftOutAndTheCodesStay) {
  RawClient client = attached();
  std::vector<OpenOperation> opens(kOperationsMax);  // with a fingerprint that is nobody's
  for (std::size_t index = 0; index < opens.size(); ++index) {
    opens[index].context = context_name("session-" + std::to_string(index), 1);
  }
  const RawReply reply = client.ask(make_frame(Type::open, 1, opens));
  const Results results = reply.results();
  ASSERT_EQ(results.size(), kOperationsMax);
  EXPECT_LE(reply.header.length_bytes, kFrameBytesMax);
  for (const OperationResult& result : results) {
    EXPECT_TRUE(is_error(result, ErrorCode::incompatible_recipe));
    EXPECT_LE(result.text_offset + result.text_bytes, reply.text.size());
  }
  EXPECT_GT(results.front().text_bytes, 0U);
}

// FR-082: ids of any bytes are sessions of their own, also those that differ in their last byte or
// in Unicode form only.
TEST_F(ControlProtocol, SessionIdsOfAnyBytesAreTheirOwnSessions) {
  RawClient client = attached();
  const std::vector<std::string> ids{std::string("\0", 1),
                                     std::string("\0\0", 2),
                                     "a",
                                     std::string("a\0", 2),
                                     "\xff\xfe",
                                     "\"\\\n",
                                     "caf\u00e9",
                                     "cafe\u0301",
                                     std::string(127, 'x'),
                                     std::string(128, 'x'),
                                     std::string(127, 'x') + "y"};
  std::vector<std::uint32_t> slots;
  for (const std::string& id : ids) {
    const OperationResult opened = client.open(id, 1);
    ASSERT_TRUE(is_done(opened)) << escape_bytes(id);
    slots.push_back(opened.slot);
  }
  std::ranges::sort(slots);
  EXPECT_EQ(std::ranges::adjacent_find(slots), slots.end());
}

}  // namespace
}  // namespace hotkv::testing
