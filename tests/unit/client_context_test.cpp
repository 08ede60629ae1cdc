#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <optional>
#include <thread>

#include <hotkv/client.hpp>

#include "tests/support/fake_daemon.hpp"
#include "tests/support/fake_rows.hpp"

namespace hotkv {
namespace {

using fake::append_tokens;
using fake::Bytes;
using fake::expect_tokens;
using fake::FakeDaemon;
using fake::kA;
using fake::session_id;
using fake::write_all;
using protocol::OperationResult;
using protocol::Type;
using std::chrono::milliseconds;

// A deadline that a test waits out, and that a loaded machine still keeps where it must not pass.
constexpr milliseconds kShort{400};

TEST(Context, AppendsWriteAndPublishAroundEveryChunkEdge) {
  for (const std::uint32_t step : {1u, 5u, 15u, 16u, 17u, 33u}) {
    FakeDaemon daemon;
    Client client = daemon.attach();
    auto context = client.open(kA, Epoch{1});
    ASSERT_TRUE(context.has_value()) << context.error().message();
    for (std::uint32_t length = step; length <= 5 * step; length += step) {
      append_tokens(*context, step);
      EXPECT_EQ(context->length(), TokenCount{length});
      expect_tokens(client, kA, length);
    }
    EXPECT_EQ(daemon.pins_held(), 0u);
  }
}

TEST(Context, WithinTheGrantNothingIsAsked) {
  FakeDaemon daemon;
  Client client = daemon.attach();
  Context context = *client.open(kA, Epoch{1});
  ASSERT_TRUE(context.reserve(TokenCount{64}).has_value());
  EXPECT_EQ(context.granted(), TokenCount{64});
  for (int i = 0; i < 64; ++i) append_tokens(context, 1);
  EXPECT_EQ(daemon.received(Type::append), 1u);
  EXPECT_EQ(context.granted(), TokenCount{0});
  ASSERT_TRUE(context.reserve(TokenCount{1}).has_value());
  EXPECT_EQ(daemon.received(Type::append), 2u);
  ASSERT_TRUE(context.reserve(TokenCount{2}).has_value());
  EXPECT_EQ(daemon.received(Type::append), 2u) << "it is granted already";
}

// FR-107: what counts is what was published, not what was granted or written.
TEST(Context, TokensAreSeenOnlyOncePublishedAndNeverMoreOfThem) {
  FakeDaemon daemon;
  Client client = daemon.attach();
  Context context = *client.open(kA, Epoch{1});
  auto writer = context.append(TokenCount{20});
  ASSERT_TRUE(writer.has_value());
  write_all(*writer);
  EXPECT_EQ(client.get(kA, Epoch{1})->length(), TokenCount{0});
  EXPECT_EQ(writer->publish(TokenCount{19}), TokenCount{19});
  expect_tokens(client, kA, 19);
  EXPECT_EQ(writer->publish(TokenCount{18}).error().code, ErrorCode::invalid_argument);
  EXPECT_EQ(writer->publish(TokenCount{21}).error().code, ErrorCode::invalid_argument);
  EXPECT_EQ(writer->publish(TokenCount{19}), TokenCount{19}) << "again is nothing";
  EXPECT_EQ(context.length(), TokenCount{19});
  EXPECT_EQ(writer->publish(), TokenCount{20});
  expect_tokens(client, kA, 20);
}

TEST(Context, ArgumentsOutOfRangeAreNamedAndReachNobody) {
  FakeDaemon daemon;
  Client client = daemon.attach();
  Context context = *client.open(kA, Epoch{1});
  EXPECT_TRUE(context.append(TokenCount{0}).error().is(ErrorCode::invalid_argument));
  EXPECT_TRUE(context.append(TokenCount{0xffff'ffff}).error().is(ErrorCode::invalid_argument));
  EXPECT_TRUE(context.reserve(TokenCount{0x8000'0000}).error().is(ErrorCode::invalid_argument));
  EXPECT_TRUE(context.truncate(TokenCount{1}).error().is(ErrorCode::invalid_argument));
  EXPECT_EQ(daemon.received(Type::append), 0u);
  EXPECT_EQ(daemon.received(Type::truncate), 0u);
}

TEST(Context, TruncatesToAnyLengthAndTheReadersOfOldTokensKeepThem) {
  FakeDaemon daemon;
  Client client = daemon.attach();
  Context context = *client.open(kA, Epoch{1});
  append_tokens(context, 40);
  const View old = *client.get(kA, Epoch{1});
  ASSERT_TRUE(context.truncate(TokenCount{40}).has_value());
  EXPECT_EQ(daemon.received(Type::truncate), 0u) << "the present length is no change";
  for (const std::uint32_t to : {33u, 32u, 17u, 1u, 0u}) {
    ASSERT_TRUE(context.truncate(TokenCount{to}).has_value());
    EXPECT_EQ(context.length(), TokenCount{to});
    expect_tokens(client, kA, to);
  }
  append_tokens(context, 20);
  expect_tokens(client, kA, 20);
  EXPECT_EQ(old.length(), TokenCount{40});
}

// Of a publish behind the last answer the library knows from memory alone, which has gone with it.
TEST(Context, ATruncateOfAContextThatEndedSaysHowWhateverLengthWasKnown) {
  FakeDaemon daemon;
  Client client = daemon.attach();
  Context context = *client.open(kA, Epoch{1});
  append_tokens(context, 3);
  append_tokens(context, 2);
  daemon.retire(kA, MissReason::evicted_lru);
  const auto refused = context.truncate(TokenCount{5});
  ASSERT_FALSE(refused.has_value());
  EXPECT_TRUE(refused.error().is(MissReason::evicted_lru)) << refused.error().message();
}

TEST(Context, ATruncateThatMeetsAnotherPublishIsRefused) {
  FakeDaemon daemon;
  Client client = daemon.attach();
  Context context = *client.open(kA, Epoch{1});
  append_tokens(context, 10);
  daemon.script(Type::truncate, [&](const FakeDaemon::Received& received) {
    // Somebody of this client publishes between the look at the length and the daemon's turn.
    FakeDaemon::Received late = received;
    auto truncate = received.operation<protocol::TruncateOperation>(0);
    EXPECT_EQ(truncate.from_tokens, 10u);
    truncate.from_tokens = 9;
    std::memcpy(late.operations.data(), &truncate, sizeof truncate);
    return std::vector<Bytes>{daemon.honest_answer(late)};
  });
  const auto refused = context.truncate(TokenCount{5});
  ASSERT_FALSE(refused.has_value());
  EXPECT_TRUE(refused.error().is(ErrorCode::length_mismatch));
  EXPECT_NE(refused.error().message().find("published are 10"), std::string::npos);
}

TEST(Context, ATailCopyChangesTheGenerationUnderTheHoldersHandAndNothingElse) {
  FakeDaemon daemon;
  Client client = daemon.attach();
  Context context = *client.open(kA, Epoch{1});
  append_tokens(context, 16);
  daemon.script(Type::append, [&](const FakeDaemon::Received& received) {
    daemon.end_generation_in_lock(kA);
    FakeDaemon::Received next = received;
    auto append = received.operation<protocol::AppendOperation>(0);
    ++append.generation;
    std::memcpy(next.operations.data(), &append, sizeof append);
    return std::vector<Bytes>{daemon.honest_answer(next)};
  });
  append_tokens(context, 5);
  expect_tokens(client, kA, 21);
}

// ---- leases -------------------------------------------------------------------------------------

TEST(Context, ClosingGivesTheLeaseBackAndTheContextStays) {
  FakeDaemon daemon;
  Client client = daemon.attach();
  Context context = *client.open(kA, Epoch{1});
  append_tokens(context, 3);
  ASSERT_TRUE(context.close().has_value());
  EXPECT_EQ(daemon.received(Type::close), 1u);
  EXPECT_TRUE(context.append(TokenCount{1}).error().is(ErrorCode::lease_lost));
  EXPECT_TRUE(context.close().error().is(ErrorCode::lease_lost));
  expect_tokens(client, kA, 3);
  Client other = daemon.attach();
  EXPECT_TRUE(other.open(kA, Epoch{1}).has_value());
}

TEST(Context, ItsDestructorGivesTheLeaseBackWithoutWaiting) {
  FakeDaemon daemon;
  Client client = daemon.attach();
  daemon.script(Type::close, [](const auto&) { return std::vector<Bytes>{}; });
  { const Context context = *client.open(kA, Epoch{1}); }
  daemon.wait_for(Type::close, 1);
}

TEST(Context, OpeningAgainIsTheSameLeaseAndTheLastGivesItBack) {
  FakeDaemon daemon;
  Client client = daemon.attach();
  std::optional<Context> context = *client.open(kA, Epoch{1});
  append_tokens(*context, 3);
  context = *client.open(kA, Epoch{1});  // the new one is there before the old one goes
  append_tokens(*context, 3);
  EXPECT_EQ(daemon.received(Type::close), 0u);
  context.reset();
  daemon.wait_for(Type::close, 1);
}

TEST(Context, ABusyOrStaleOpenSaysSo) {
  FakeDaemon daemon;
  Client first = daemon.attach();
  Client second = daemon.attach();
  const Context context = *first.open(kA, Epoch{2});
  const auto busy = second.open(kA, Epoch{2});
  ASSERT_FALSE(busy.has_value());
  EXPECT_TRUE(busy.error().is(ErrorCode::session_busy));
  EXPECT_EQ(busy.error().message(),
            "open session \"a\" epoch 2: session-busy: held by another page");
  EXPECT_TRUE(second.open(kA, Epoch{1}).error().is(ErrorCode::stale_epoch));
  const auto other = fake::small_recipe("tiny", DType::bf16);
  EXPECT_TRUE(second.open(kA, Epoch{2}, &other).error().is(ErrorCode::incompatible_recipe));
  EXPECT_TRUE(second.open(kA, Epoch{3}, &daemon.recipe()).has_value()) << "supersedes";
}

TEST(Context, AnOpenAnsweredTooLateIsGivenBack) {
  FakeDaemon daemon;
  Client client = daemon.attach(Access::write, kShort);
  Bytes late;
  daemon.script(Type::open, [&](const FakeDaemon::Received& received) {
    late = daemon.honest_answer(received);
    return std::vector<Bytes>{};
  });
  EXPECT_TRUE(client.open(kA, Epoch{1}).error().is(ErrorCode::deadline_exceeded));
  daemon.wait_for(Type::open, 1);
  daemon.send(late);
  daemon.wait_for(Type::close, 1);
  daemon.script(Type::open, {});
  Client other = daemon.attach();
  EXPECT_TRUE(other.open(kA, Epoch{1}).has_value());
}

TEST(Context, ReleaseEndsTheContextAndLeavesNothingToClose) {
  FakeDaemon daemon;
  Client client = daemon.attach();
  {
    Context context = *client.open(kA, Epoch{1});
    append_tokens(context, 3);
    ASSERT_TRUE(context.release().has_value());
    EXPECT_TRUE(context.append(TokenCount{1}).error().is(ErrorCode::lease_lost));
  }
  EXPECT_EQ(client.get(kA, Epoch{1}).error().reason, MissReason::released);
  EXPECT_EQ(daemon.received(Type::close), 0u);
  EXPECT_TRUE(client.release(kA, Epoch{1}).error().is(MissReason::released));
  Client reader = daemon.attach(Access::read);
  daemon.put(session_id("b"), Epoch{1}, TokenCount{1});
  EXPECT_TRUE(reader.release(session_id("b"), Epoch{1}).has_value());
}

// ---- without a daemon ---------------------------------------------------------------------------

TEST(Context, WhenTheDaemonDiesTheGrantGoesOnAndTheRestIsRefusedAtOnce) {
  FakeDaemon daemon;
  Client client = daemon.attach();
  auto context = std::make_unique<Context>(*client.open(kA, Epoch{1}));
  ASSERT_TRUE(context->reserve(TokenCount{16}).has_value());
  append_tokens(*context, 3);
  daemon.die();
  while (client.is_connected()) std::this_thread::yield();
  append_tokens(*context, 12);
  EXPECT_EQ(context->length(), TokenCount{15});
  EXPECT_TRUE(context->append(TokenCount{2}).error().is(ErrorCode::daemon_unavailable));
  EXPECT_TRUE(context->truncate(TokenCount{0}).error().is(ErrorCode::daemon_unavailable));
  EXPECT_TRUE(context->release().error().is(ErrorCode::daemon_unavailable));
  EXPECT_TRUE(client.open(kA, Epoch{1}).error().is(ErrorCode::daemon_unavailable));
  append_tokens(*context, 1);
  const auto begin = std::chrono::steady_clock::now();
  EXPECT_TRUE(context->close().error().is(ErrorCode::daemon_unavailable));
  context.reset();
  { const Client gone = std::move(client); }
  EXPECT_LT(std::chrono::steady_clock::now() - begin, milliseconds(100));
}

TEST(Context, AnAppendThatIsNotAnsweredEndsByTheDeadlineAndCanBeTriedAgain) {
  FakeDaemon daemon;
  Client client = daemon.attach(Access::write, kShort);
  Context context = *client.open(kA, Epoch{1});
  daemon.script(Type::append, [](const auto&) { return std::vector<Bytes>{}; });
  EXPECT_TRUE(context.append(TokenCount{1}).error().is(ErrorCode::deadline_exceeded));
  EXPECT_EQ(daemon.pins_held(), 0u);
  daemon.script(Type::append, {});
  append_tokens(context, 1);
}

TEST(Context, HostilePositionsAreProtocolErrorsAndLeaveTheContextAsItWas) {
  FakeDaemon daemon;
  Client client = daemon.attach();
  Context context = *client.open(kA, Epoch{1});
  append_tokens(context, 3);
  const auto answer_with = [&](auto change) {
    daemon.script(Type::append, [&, change](const FakeDaemon::Received& received) {
      Bytes frame = daemon.honest_answer(received);
      OperationResult result;
      std::memcpy(&result, frame.data() + 32, sizeof result);
      change(result);
      std::memcpy(frame.data() + 32, &result, sizeof result);
      return std::vector<Bytes>{frame};
    });
    const auto writer = context.append(TokenCount{20});
    return writer ? std::optional<ErrorCode>() : writer.error().error().code;
  };
  EXPECT_EQ(answer_with([](auto& r) { r.slot = 1 << 20; }), ErrorCode::protocol_error);
  EXPECT_EQ(answer_with([](auto& r) { r.tip = 0xffff'ffff; }), ErrorCode::protocol_error);
  EXPECT_EQ(answer_with([](auto& r) { r.writable_tokens = 2; }), ErrorCode::protocol_error);
  EXPECT_EQ(answer_with([](auto& r) { r.outcome = 7; }), ErrorCode::protocol_error);
  daemon.put(session_id("b"), Epoch{1}, TokenCount{40});
  EXPECT_EQ(answer_with([&](auto& r) { r.slot = daemon.slot_in_lock(session_id("b")).value(); }),
            ErrorCode::protocol_error);
  // More writable than the chain has chunks for: noticed when the chain is walked.
  EXPECT_EQ(answer_with([](auto& r) { r.writable_tokens = 1 << 20; }), std::nullopt);
  EXPECT_TRUE(context.append(TokenCount{1 << 19}).error().is(ErrorCode::shard_damaged));
  EXPECT_EQ(context.length(), TokenCount{3});
  EXPECT_EQ(daemon.pins_held(), 0u);
}

// ---- batches ------------------------------------------------------------------------------------

TEST(Client, ABatchIsOneMessageForUpTo256) {
  fake::FakeDaemonOptions options;
  options.contexts = 400;
  FakeDaemon daemon(options);
  Client client = daemon.attach();
  std::vector<ContextKey> keys;
  for (int i = 0; i < 300; ++i) keys.push_back({session_id("s" + std::to_string(i)), Epoch{1}});
  auto opened = client.open(keys);
  ASSERT_EQ(opened.size(), 300u);
  EXPECT_EQ(daemon.received(Type::open), 2u);
  std::vector<AppendRequest> appends;
  for (std::size_t i = 0; i < 300; ++i) {
    ASSERT_TRUE(opened[i].has_value()) << i;
    EXPECT_EQ(opened[i]->session(), keys[i].session);
    appends.push_back({&*opened[i], TokenCount{i == 7 ? 0u : 2u}});
  }
  auto writers = client.append(appends);
  EXPECT_EQ(daemon.received(Type::append), 2u);
  for (std::size_t i = 0; i < 300; ++i) {
    if (i == 7) {
      EXPECT_TRUE(writers[i].error().is(ErrorCode::invalid_argument));
    } else {
      ASSERT_TRUE(writers[i].has_value()) << i;
      EXPECT_EQ(writers[i]->publish(), TokenCount{2});
    }
  }
  writers.clear();
  EXPECT_EQ(client.append(appends).size(), 300u);
  EXPECT_EQ(daemon.received(Type::append), 2u) << "within the grants nothing is asked";

  std::vector<TruncateRequest> truncates;
  for (auto& context : opened) truncates.push_back({&*context, TokenCount{1}});
  const auto truncated = client.truncate(truncates);
  EXPECT_EQ(daemon.received(Type::truncate), 2u);
  EXPECT_TRUE(truncated[7].error().is(ErrorCode::invalid_argument)) << "it has no token";
  EXPECT_TRUE(truncated[8].has_value());
  daemon.retire(keys[4].session, MissReason::evicted_ttl);
  const auto released = client.release(keys);
  EXPECT_EQ(daemon.received(Type::release), 2u);
  EXPECT_TRUE(released[4].error().is(MissReason::evicted_ttl));
  EXPECT_TRUE(released[299].has_value());
}

TEST(Client, ABatchWithANullOrForeignContextIsRefusedWhole) {
  FakeDaemon daemon;
  Client client = daemon.attach();
  Client other = daemon.attach();
  Context mine = *client.open(kA, Epoch{1});
  Context foreign = *other.open(session_id("b"), Epoch{1});
  for (Context* bad : {static_cast<Context*>(nullptr), &foreign}) {
    const std::array appends{AppendRequest{&mine, TokenCount{1}},
                             AppendRequest{bad, TokenCount{1}}};
    const auto writers = client.append(appends);
    EXPECT_TRUE(writers[0].error().is(ErrorCode::invalid_argument));
    EXPECT_TRUE(writers[1].error().is(ErrorCode::invalid_argument));
  }
  EXPECT_TRUE(client.append({}).empty());
  EXPECT_TRUE(client.open(std::span<const ContextKey>()).empty());
}

}  // namespace
}  // namespace hotkv
