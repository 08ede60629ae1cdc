// Frames of a connection that no library would send.

#include <fcntl.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "tests/hostile/conversation.hpp"
#include "tests/support/under_fire.hpp"

namespace hotkv::testing {
namespace {

using protocol::FrameHeader;
using protocol::Type;

class ControlFrames : public UnderFire {
 protected:
  [[nodiscard]] std::uint64_t refused() const {
    return status_number(daemon_, "/server/frames_refused/protocol-error");
  }
};

template <class Change>
Bytes changed_header(Bytes frame, Change change) {
  FrameHeader header;
  std::memcpy(&header, frame.data(), sizeof header);
  change(header);
  std::memcpy(frame.data(), &header, sizeof header);
  return frame;
}

Bytes cut_to(const Bytes& frame, std::size_t size) {
  return {frame.begin(), frame.begin() + static_cast<std::ptrdiff_t>(size)};
}

// The frames of a whole conversation in turn. `before` gets each of them before it is sent; the
// answers must be right.
template <class Before>
void converse(RawClient& client, const std::string& session, Before before) {
  std::uint32_t generation = 0;
  for (const Type type : kConversation) {
    const Bytes frame = right_frame(type, small_recipe(), session, generation);
    before(frame);
    const RawReply reply = client.ask(frame);
    ASSERT_EQ(reply.header.type, static_cast<std::uint16_t>(type));
    ASSERT_EQ(reply.header.status, 0U) << reply.text;
    if (type == Type::hello) continue;
    if (type == Type::attach) {
      client.stay_alive(reply);
      continue;
    }
    ASSERT_EQ(reply.results().size(), 1U);
    EXPECT_TRUE(is_done(reply.results().front())) << static_cast<int>(type) << reply.text;
    generation = std::max(generation, reply.results().front().generation);
  }
}

// A cut is refused as it comes, and also with a length word that calls it whole.
TEST_F(ControlFrames, EveryTypeCutAtEveryByteIsRefusedAndIsAnsweredWhole) {
  RawClient client(daemon_.control_path());
  std::uint64_t cuts = 0;
  const auto refuse = [&](const Bytes& cut, std::uint64_t request_id) {
    const RawReply reply = client.ask(cut);
    ++cuts;
    EXPECT_TRUE(reply.is_error(ErrorCode::protocol_error)) << cut.size();
    EXPECT_FALSE(reply.text.empty()) << cut.size();
    EXPECT_EQ(reply.header.request_id, request_id) << cut.size();
  };
  converse(client, "session", [&](const Bytes& whole) {
    for (std::size_t size = 0; size < whole.size(); ++size) {
      const bool has_header = size >= sizeof(FrameHeader);
      refuse(cut_to(whole, size), has_header ? 77 : 0);
      if (!has_header) continue;
      refuse(changed_header(cut_to(whole, size),
                            [&](FrameHeader& header) {
                              header.length_bytes = static_cast<std::uint32_t>(size);
                            }),
             77);
    }
  });
  EXPECT_EQ(refused(), cuts);
  EXPECT_GT(cuts, 2000U);
}

// FR-083: no number of a header is believed, whatever it would multiply to.
TEST_F(ControlFrames, LengthsAndCountsThatAreNotTheFramesAreRefusedByName) {
  RawClient client(daemon_.control_path());
  std::uint64_t wild_frames = 0;
  const auto refuse = [&](const Bytes& frame, const std::string& field) {
    const RawReply reply = client.ask(frame);
    ++wild_frames;
    EXPECT_TRUE(reply.is_error(ErrorCode::protocol_error));
    EXPECT_NE(reply.text.find(field), std::string::npos) << reply.text;
  };
  converse(client, "session", [&](const Bytes& whole) {
    const auto size = static_cast<std::uint32_t>(whole.size());
    for (const std::uint32_t wild :
         {0U, 1U, 31U, 32U, size - 1, size + 1, 65536U, 0x7fff'ffffU, 0x8000'0000U, 0xffff'ffffU}) {
      refuse(changed_header(whole, [&](FrameHeader& header) { header.length_bytes = wild; }),
             "length_bytes: expected " + std::to_string(size));
    }
    for (const int wild : {0, 257, 0x7fff, 0x8000, 0xffff}) {
      refuse(
          changed_header(
              whole, [&](FrameHeader& header) { header.count = static_cast<std::uint16_t>(wild); }),
          "count");
    }
    refuse(changed_header(whole, [&](FrameHeader& header) { header.type = 9; }), "type");
  });
  EXPECT_EQ(refused(), wild_frames);
}

// FR-133: each is answered and counted, and the log has a few lines a second of them.
TEST_F(ControlFrames, AFloodOfEmptyFramesIsAnsweredAndCountedAndNearlySilent) {
  constexpr std::uint64_t kFlood = 10'000;
  RawClient client(daemon_.control_path());
  for (std::uint64_t sent = 0; sent < kFlood; ++sent) {
    ASSERT_TRUE(client.ask({}).is_error(ErrorCode::protocol_error)) << sent;
  }
  EXPECT_EQ(refused(), kFlood);
  converse(client, "session", [](const Bytes&) {});
  // The next second's first line says how many there were in between.
  EXPECT_TRUE(eventually([&] {
    return !client.ask({}).text.empty() && log_lines("left_out=") > 0;
  })) << daemon_.err();
  EXPECT_LT(log_lines("event=protocol-error"), kFlood / 50);
}

// FR-074: none of them stays, whichever frame they came with.
TEST_F(ControlFrames, DescriptorsThatComeWithAnyFrameAreDropped) {
  constexpr std::size_t kMostThatTheKernelPasses = 253;
  constexpr int kConversations = 25;
  const RawClient witness =
      attached_client(daemon_.control_path());  // the shard's own files are there already
  const int before = daemon_.open_descriptors();
  if (before < 0) GTEST_SKIP() << "the daemon's descriptors cannot be seen by this user";
  const UniqueFd null(::open("/dev/null", O_RDONLY | O_CLOEXEC));
  std::uint64_t malformed = 0;
  int most = 0;
  for (int count = 0; count < kConversations; ++count) {
    RawClient client(daemon_.control_path());
    const std::string session = "session-" + std::to_string(count);
    std::uint32_t generation = 0;
    const auto ask = [&](const Bytes& frame) {
      EXPECT_TRUE(client.send_with_descriptors(frame, null.get(), kMostThatTheKernelPasses));
      auto reply = client.receive();
      EXPECT_TRUE(reply.has_value());
      return reply ? *std::move(reply) : RawReply{};
    };
    for (const Type type : kConversation) {
      const Bytes frame = right_frame(type, small_recipe(), session, generation);
      const std::vector<Bytes> wrong{{}, cut_to(frame, frame.size() - 1), Bytes(65537)};
      for (const Bytes& bad : wrong) {
        EXPECT_TRUE(ask(bad).is_error(ErrorCode::protocol_error)) << bad.size();
        ++malformed;
      }
      const RawReply reply = ask(frame);
      EXPECT_EQ(reply.header.status, 0U) << reply.text;
      if (type == Type::attach) client.stay_alive(reply);
      if (type == Type::open) generation = reply.results().at(0).generation;
      most = std::max(most, daemon_.open_descriptors());
    }
  }
  EXPECT_EQ(refused(), malformed);
  EXPECT_LT(most, before + 20);
  // The honest worker's grants come and go, so this is waited for rather than read once.
  EXPECT_TRUE(eventually([&] { return daemon_.open_descriptors() <= before; }))
      << daemon_.open_descriptors() << " of " << before;
}

// ---- the connection cut -------------------------------------------------------------------------

class CutConversations : public UnderFire {
 protected:
  // Says the first `count` messages of a conversation, leaves the last answer unread if it is told
  // to, and hangs up.
  void hang_up_after(std::size_t count, bool reads_last, const std::string& session) {
    RawClient client(daemon_.control_path());
    std::uint32_t generation = 0;
    for (std::size_t index = 0; index < count; ++index) {
      const Type type = kConversation[index];
      ASSERT_TRUE(client.send(right_frame(type, small_recipe(), session, generation)));
      if (index + 1 == count && !reads_last) break;
      const auto reply = client.receive();
      ASSERT_TRUE(reply.has_value());
      if (type == Type::attach) client.stay_alive(*reply);
      if (type == Type::open) generation = reply->results().at(0).generation;
    }
  }
};

// FR-080: what was said is done or not done, and with its sayers gone nothing is held.
TEST_F(CutConversations, AHangUpAfterAnyMessageLeavesTheContextDoneOrNotDone) {
  constexpr std::size_t kOpenIs = 3;
  RawClient witness = attached_client(daemon_.control_path());
  const std::uint64_t connections = status_number(daemon_, "/server/connections");
  constexpr int kRounds = 12;
  int cut = 0;
  for (int round = 0; round < kRounds; ++round) {
    for (std::size_t said = 0; said <= kConversation.size(); ++said) {
      const bool reads_last = round % 2 == 0;
      const std::string session = std::to_string(round) + "/" + std::to_string(said);
      hang_up_after(said, reads_last, session);
      ++cut;
      ASSERT_TRUE(
          eventually([&] { return status_number(daemon_, "/server/connections") == connections; }));
      const auto state = witness.explain(session, 1, 0);
      const bool is_there = is_done(state) && state.length_tokens == 0;
      const bool is_unknown = is_miss(state, MissReason::unknown_session);
      const bool is_released = is_miss(state, MissReason::released);
      if (said < kOpenIs) {
        EXPECT_TRUE(is_unknown) << session;
      } else if (said < kConversation.size()) {
        EXPECT_TRUE(is_there || (said == kOpenIs && !reads_last && is_unknown)) << session;
      } else {
        EXPECT_TRUE(is_released || (!reads_last && is_there)) << session;
      }
    }
  }
  EXPECT_GE(status_number(daemon_, "/server/disconnects/hung-up"), static_cast<unsigned>(cut));
  // All that is left can go: nobody holds or pins any of it.
  const auto contexts = admin_page(daemon_, "/contexts");
  for (const auto& context : contexts.at("contexts")) {
    const auto session = context.at("session").get<std::string>();
    if (session == "honest") continue;
    EXPECT_TRUE(context.at("lease").is_null()) << context;
    EXPECT_FALSE(context.at("pinned").get<bool>()) << context;
    EXPECT_TRUE(is_done(witness.release(session, 1)));
  }
  // An ATTACH that nobody read was on its way when its client hung up: that page is free a tick
  // later.
  EXPECT_TRUE(eventually([&] { return shard_status(daemon_, "model-a").at("clients") == 1; }));
  const auto shard = shard_status(daemon_, "model-a");
  EXPECT_EQ(shard.at("contexts"), 0);
  EXPECT_EQ(shard.at("account").at("used_bytes"), 0) << shard;
  EXPECT_EQ(shard.at("account").at("kept_bytes"), 0) << shard;
}

}  // namespace
}  // namespace hotkv::testing
