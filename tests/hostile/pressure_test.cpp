// Too much of what is right: clients that do not read, do not stop, or are too many.

#include <gtest/gtest.h>
#include <signal.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdio>
#include <string>
#include <thread>
#include <vector>

#include "daemon/server/pace.hpp"
#include "tests/hostile/conversation.hpp"
#include "tests/support/processor_time.hpp"
#include "tests/support/under_fire.hpp"

namespace hotkv::testing {
namespace {

using namespace protocol;
using Clock = std::chrono::steady_clock;

class Pressure : public UnderFire {};

// A message of 256 operations, whose answer takes 14 KiB.
template <class Operation>
Bytes full_frame(Type type, const Operation& operation) {
  return make_frame<Operation>(type, 1, std::vector<Operation>(kOperationsMax, operation));
}

Bytes full_explain(const std::string& session) {
  ExplainOperation explain{
      context_name(session, 1), {}, 0, static_cast<std::uint32_t>(LengthMatch::any)};
  std::ranges::copy(small_recipe().fingerprint(), explain.fingerprint);
  return full_frame(Type::explain, explain);
}

// ---- not reading --------------------------------------------------------------------------------

// FR-079: what it is owed is bounded; it is disconnected, and everybody else is served all the
// time.
TEST_F(Pressure, AClientThatNeverReadsItsRightAnswersIsDisconnected) {
  constexpr int kFarMoreThanFits = 5000;
  RawClient other = attached_client(daemon_.control_path());
  std::uint64_t disconnected = 0;
  for (const Type type : {Type::explain, Type::append}) {
    const std::string session = "session-" + std::to_string(disconnected);
    RawClient deaf = attached_client(daemon_.control_path());
    const OperationResult opened = deaf.open(session, 1);
    ASSERT_TRUE(is_done(opened));
    const Bytes frame =
        type == Type::explain
            ? full_explain(session)
            : full_frame<AppendOperation>(type, {context_name(session, 1), opened.generation, 5});
    int sent = 0;
    while (sent < kFarMoreThanFits && deaf.send(frame)) ++sent;
    EXPECT_LT(sent, kFarMoreThanFits);
    EXPECT_EQ(status_number(daemon_, "/server/disconnects/not-reading"), ++disconnected);
    // It is not dead, but whoever wants its context has it.
    EXPECT_TRUE(is_done(other.open(session, 1)));
  }
  EXPECT_TRUE(eventually([&] { return log_lines("event=client-not-reading") == disconnected; }));
}

// Stopped with answers unread, and asked for nothing more: it keeps connection, lease and answers.
TEST_F(Pressure, AStoppedClientHoldsNobodyUpAndGoesOnWhereItWas) {
  constexpr int kUnread = 20;
  Turns turns;
  ForkedChild child([&] {
    RawClient client = attached_client(daemon_.control_path());
    const OperationResult opened = client.open("session", 1);
    const Bytes frame = full_explain("session");
    for (int sent = 0; sent < kUnread; ++sent) client.send(frame);
    turns.arrive_and_wait();
    for (int read = 0; read < kUnread; ++read) {
      const auto reply = client.receive();
      if (!reply || reply->results().size() != kOperationsMax) return 1;
    }
    return is_done(client.append("session", 1, opened.generation, 20)) ? 0 : 2;
  });
  ASSERT_TRUE(turns.wait_for_child());
  child.stop();
  RawClient other = attached_client(daemon_.control_path());
  EXPECT_TRUE(is_error(other.open("session", 1), ErrorCode::session_busy));
  EXPECT_TRUE(is_done(other.open("another", 1)));
  EXPECT_TRUE(honest_->goes_on());
  EXPECT_EQ(status_number(daemon_, "/server/disconnects/not-reading"), 0U);
  turns.go_on();
  ::kill(child.pid(), SIGCONT);
  EXPECT_EQ(child.exit_code(), 0);
}

// ---- not stopping -------------------------------------------------------------------------------

// Right requests with a window of unanswered ones, as fast as they are answered.
std::uint64_t flood(RawClient& client, const std::string& session, std::uint64_t count) {
  constexpr std::uint64_t kWindow = 32;
  const std::uint32_t generation = client.open(session, 1).generation;
  const std::vector<Bytes> frames{right_frame(Type::explain, small_recipe(), session, generation),
                                  right_frame(Type::append, small_recipe(), session, generation),
                                  right_frame(Type::truncate, small_recipe(), session, generation)};
  std::uint64_t sent = 0;
  std::uint64_t answered = 0;
  for (std::uint64_t received = 0; received < count; ++received) {
    while (sent < count && sent - received < kWindow) {
      if (!client.send(frames[sent++ % frames.size()])) return answered;
    }
    const auto reply = client.receive();
    if (!reply) return answered;
    if (reply->results().size() == 1 && is_done(reply->results().front())) ++answered;
  }
  return answered;
}

TEST_F(Pressure, TwoClientsThatFloodAreAllAnsweredAndTheHonestOneIsServedMeanwhile) {
  constexpr std::uint64_t kFlood = 15'000;
  RawClient first = attached_client(daemon_.control_path());
  RawClient second = attached_client(daemon_.control_path());
  const std::uint64_t rounds_before = honest_->rounds();
  const std::uint64_t frames_before = frames_received(daemon_);
  std::uint64_t answered_first = 0;
  std::thread beside([&] { answered_first = flood(first, "first", kFlood); });
  const std::uint64_t answered_second = flood(second, "second", kFlood);
  const std::uint64_t rounds_meanwhile = honest_->rounds() - rounds_before;
  beside.join();
  EXPECT_EQ(answered_first, kFlood);
  EXPECT_EQ(answered_second, kFlood);
  EXPECT_GE(rounds_meanwhile, 3U);
  EXPECT_GE(frames_received(daemon_) - frames_before, 2 * kFlood);
}

constexpr std::chrono::milliseconds kMargin{10};

std::uint64_t rests_of(const DaemonProcess& daemon) {
  return status_number(daemon, "/server/rests");
}

TEST_F(Pressure, WhoSendsAheadWithoutAnEndIsSlowedAndAnsweredAllTheSame) {
  constexpr std::uint64_t kAtATime = 1000;
  RawClient flooding = attached_client(daemon_.control_path());
  ASSERT_TRUE(eventually([&] {
    EXPECT_EQ(flood(flooding, "session", kAtATime), kAtATime);
    return rests_of(daemon_) >= 10;
  }));
  EXPECT_TRUE(eventually([&] { return log_lines("event=client-slowed") == 1; }));
  // What it did counts for a while, whatever it asks next; then it is as it was.
  std::this_thread::sleep_for(server::Pace::kShare * (server::Pace::kAtOnce + kMargin));
  const std::uint64_t rests = rests_of(daemon_);
  EXPECT_EQ(flood(flooding, "session", 8), 8U);
  EXPECT_EQ(rests_of(daemon_), rests);
}

// Not one of its requests is sent before the last one's answer, so none is ever held back, for all
// of the loop's time that it takes. Were they sent ahead, they would be.
TEST_F(Pressure, WhoWaitsForEachAnswerIsNeverSlowed) {
  RawClient client = attached_client(daemon_.control_path());
  ASSERT_TRUE(is_done(client.open("session", 1)));
  const Bytes frame = full_explain("session");
  const auto ask = [&](int ahead) {
    for (int sent = 0; sent < ahead; ++sent) ASSERT_TRUE(client.send(frame));
    for (int read = 0; read < ahead; ++read) ASSERT_TRUE(client.receive().has_value());
  };
  for (int asked = 0; asked < 5000; ++asked) ask(1);
  EXPECT_EQ(rests_of(daemon_), 0U);
  EXPECT_TRUE(eventually([&] {
    ask(8);
    return rests_of(daemon_) > 0;
  }));
}

TEST(Alone, WhoSendsAheadWithoutAnEndHasTheWholeLoop) {
  DaemonProcess daemon({.flags = {"--max-bytes=16M", "--hugepages=off"}});
  ASSERT_TRUE(daemon.wait_ready()) << daemon.err();
  RawClient client = attached_client(daemon.control_path());
  constexpr std::uint64_t kFarMoreThanAtOnce = 50'000;
  EXPECT_EQ(flood(client, "session", kFarMoreThanAtOnce), kFarMoreThanAtOnce);
  EXPECT_EQ(rests_of(daemon), 0U);
  EXPECT_EQ(daemon.stop(), 0);
}

// FR-133: of each kind a few lines a second, and every one counted.
TEST_F(Pressure, EveryKindOfRefusedFrameAtFullSpeedIsCountedExactlyAndLoggedAFewTimesASecond) {
  constexpr std::uint64_t kTimes = 1000;
  RawClient stranger(daemon_.control_path());
  RawClient greeted(daemon_.control_path());
  (void)greeted.hello();
  RawClient writer = attached_client(daemon_.control_path());
  RawClient reader = attached_client(daemon_.control_path(), Access::read);
  const auto attach_frame = [](auto change) {
    AttachRequest attach{encode_recipe(small_recipe()), 2, 0, 0};
    change(attach.recipe);
    return make_frame<AttachRequest>(Type::attach, 1, {attach});
  };
  struct Provoked {
    RawClient& client;
    Bytes frame;
    ErrorCode code;
  };
  const std::vector<Provoked> kinds{
      {stranger, right_frame(Type::attach, small_recipe(), "s", 0), ErrorCode::protocol_error},
      {stranger, make_frame<HelloRequest>(Type::hello, 1, {{2, 5}}),
       ErrorCode::unsupported_version},
      {greeted, right_frame(Type::open, small_recipe(), "s", 0), ErrorCode::not_attached},
      {greeted, attach_frame([](RecipeRecord& r) { r.kv_heads = 4; }),
       ErrorCode::incompatible_recipe},
      {greeted, attach_frame([](RecipeRecord& r) { r.kv_heads = 0; }), ErrorCode::invalid_argument},
      {greeted, attach_frame([](RecipeRecord& r) { r.architecture[0] = 'x'; }),
       ErrorCode::uncertified_architecture},
      {writer, right_frame(Type::attach, small_recipe(), "s", 0), ErrorCode::already_attached},
      {reader, right_frame(Type::open, small_recipe(), "s", 0), ErrorCode::read_only}};
  log_lines_per_second_max_ += 5 * kinds.size();
  const auto begin = Clock::now();
  for (std::uint64_t count = 0; count < kTimes; ++count) {
    for (const auto& [client, frame, code] : kinds) {
      const RawReply reply = client.ask(frame);
      ASSERT_TRUE(reply.is_error(code)) << to_string(code) << ": " << reply.text;
      ASSERT_FALSE(reply.text.empty()) << to_string(code);
    }
  }
  const auto seconds = std::chrono::ceil<std::chrono::seconds>(Clock::now() - begin).count();
  for (const auto& kind : kinds) {
    const std::string name(to_string(kind.code));
    EXPECT_EQ(status_number(daemon_, "/server/frames_refused/" + name), kTimes) << name;
    EXPECT_TRUE(eventually([&] { return log_lines("event=" + name + " ") > 0; })) << name;
    EXPECT_LE(log_lines("event=" + name + " "), static_cast<std::size_t>(5 * (seconds + 1)))
        << name;
  }
}

// ---- too many -----------------------------------------------------------------------------------

std::size_t lines_with(const std::string& log, const std::string& text) {
  std::size_t count = 0;
  for (auto at = log.find(text); at != std::string::npos; at = log.find(text, at + 1)) ++count;
  return count;
}

// FR-071: it pauses instead of spinning, those who are there are served, and it recovers.
TEST(OutOfDescriptors, TheDaemonPausesServesAndRecovers) {
  DaemonProcess daemon({.flags = {"--max-bytes=16M", "--hugepages=off"}, .descriptors_max = 40});
  ASSERT_TRUE(daemon.wait_ready()) << daemon.err();
  KvWorker established(daemon.control_path());
  ASSERT_TRUE(established.open("session", 1));
  const auto begin = Clock::now();
  std::vector<RawClient> crowd;
  for (int count = 0; count < 100; ++count) crowd.emplace_back(daemon.control_path());
  ASSERT_TRUE(eventually([&] { return lines_with(daemon.err(), "accept-failed") > 0; }));

  constexpr std::chrono::milliseconds kHold{1500};
  const auto before = processor_time(daemon.pid());
  std::this_thread::sleep_for(kHold);
  const auto taken = processor_time(daemon.pid()) - before;
  std::printf("%.1f ms of processor time in 1.5 seconds without descriptors\n",
              milliseconds_of(taken));
  EXPECT_GT(before.count(), 0);
  EXPECT_LT(taken, kHold / 10);
  EXPECT_GE(status_number(daemon, "/server/accept_errors"), 5U);  // people still get in
  ASSERT_EQ(why(established.append("session", 40)), "");
  EXPECT_TRUE(
      established.client().resolve(SessionId::from("session").value(), Epoch{1}, TokenCount{40}));

  crowd.clear();
  RawClient later(daemon.control_path());
  EXPECT_EQ(later.hello().header.status, 0U);
  EXPECT_EQ(broken_invariant(daemon), "");
  // Ten tries a second, not one for every turn of the loop, and of those five lines; on a busy
  // machine the hold was longer.
  const std::uint64_t errors = status_number(daemon, "/server/accept_errors");
  const auto seconds = static_cast<std::uint64_t>(
      std::chrono::floor<std::chrono::seconds>(Clock::now() - begin).count());
  EXPECT_LE(errors, 2 * 10 * (seconds + 1));  // of two listeners
  EXPECT_EQ(daemon.stop(), 0);
  EXPECT_LE(lines_with(daemon.err(), "accept-failed"), 5 * (seconds + 1));
}

}  // namespace
}  // namespace hotkv::testing
