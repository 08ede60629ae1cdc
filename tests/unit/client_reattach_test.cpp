// The daemon dies and comes back with the memory it had.

#include <gtest/gtest.h>

#include <array>
#include <atomic>
#include <optional>
#include <set>
#include <string>
#include <thread>
#include <vector>

#include <hotkv/client.hpp>

#include "client/library/backoff.hpp"
#include "tests/support/eventually.hpp"
#include "tests/support/fake_daemon.hpp"
#include "tests/support/fake_rows.hpp"
#include "tests/support/forked_child.hpp"

namespace hotkv {
namespace {

using fake::append_tokens;
using fake::Bytes;
using fake::expect_tokens;
using fake::FakeDaemon;
using fake::FakeDaemonOptions;
using fake::kA;
using fake::kB;
using fake::rows_of;
using fake::session_id;
using fake::write_all;
using protocol::Type;
using std::chrono::milliseconds;
using std::chrono::steady_clock;
using testing::eventually;

constexpr milliseconds kLong = std::chrono::minutes(1);  // reached only by a test that fails

std::vector<Bytes> silence(const FakeDaemon::Received&) {
  return {};
}

void die_and_be_missed(FakeDaemon& daemon, const Client& client) {
  daemon.die();
  ASSERT_TRUE(eventually([&] { return !client.is_connected(); }));
}

Bytes keys_of(const View& view) {
  Bytes keys(view.length().value() * 16);
  EXPECT_EQ(view.gather_keys(3, keys), keys.size());
  return keys;
}

// FR-053: the daemon comes back with the arena it had; whatever the client holds goes on.
TEST(Reattach, EverythingHeldGoesOnThroughAnOutageAndBehindIt) {
  FakeDaemon daemon;
  Client client = daemon.attach();
  Context context = *client.open(kA, Epoch{1});
  append_tokens(context, 3);
  const View view = *client.get(kA, Epoch{1});
  Writer before = *context.append(TokenCount{5});
  write_all(before);
  const std::uint64_t boot_token = client.boot_token();

  die_and_be_missed(daemon, client);
  EXPECT_EQ(keys_of(view), rows_of(0, 3, 3, true));
  EXPECT_EQ(before.publish(), TokenCount{8});
  append_tokens(context, 4);
  EXPECT_EQ(client.get(kA, Epoch{1}).error().cause, ErrorCode::daemon_unavailable);
  EXPECT_TRUE(context.append(TokenCount{100}).error().is(ErrorCode::daemon_unavailable));
  EXPECT_FALSE(client.wait_connected(milliseconds(20)));

  daemon.come_back();
  ASSERT_TRUE(client.wait_connected(kLong));
  EXPECT_TRUE(client.is_connected());
  EXPECT_EQ(client.boot_token(), boot_token);
  EXPECT_EQ(keys_of(view), rows_of(0, 3, 3, true));
  expect_tokens(client, kA, 12);
  append_tokens(context, 100);
  expect_tokens(client, kA, 112);
  ASSERT_TRUE(context.truncate(TokenCount{2}).has_value());
  append_tokens(context, 1);
  expect_tokens(client, kA, 3);
  EXPECT_TRUE(client.open(kB, Epoch{1}).has_value());
  EXPECT_EQ(daemon.pins_held(PageIndex{0}), 2u) << "view and writer, in the page they had";
}

TEST(Reattach, OutlivesAnyNumberOfHangUpsWithAndWithoutRefusals) {
  FakeDaemon daemon;
  Client client = daemon.attach();
  Context context = *client.open(kA, Epoch{1});
  for (std::uint32_t i = 1; i <= 3; ++i) {
    die_and_be_missed(daemon, client);
    daemon.come_back(i - 1);
    ASSERT_TRUE(client.wait_connected(kLong));
    EXPECT_EQ(daemon.refused(), i * (i - 1) / 2);
    append_tokens(context, 20);
    expect_tokens(client, kA, 20 * i);
  }
}

TEST(Reattach, WhatOutlivesTheClientComesBackToo) {
  FakeDaemon daemon;
  std::optional<Client> client = daemon.attach();
  Context context = *client->open(kA, Epoch{1});
  client.reset();
  daemon.die();
  daemon.come_back();
  daemon.wait_for(Type::attach, 2);
  EXPECT_TRUE(eventually([&] { return context.append(TokenCount{20}).has_value(); }));
}

TEST(Reattach, StaysDisconnectedOnceItsTimeIsOverAndSaysSo) {
  FakeDaemon daemon;
  ClientOptions options = daemon.client_options();
  options.reattach_for = milliseconds(60);
  Client client = *Client::attach(options, daemon.recipe());
  die_and_be_missed(daemon, client);
  const auto begin = steady_clock::now();
  EXPECT_FALSE(client.wait_connected(kLong));
  EXPECT_LT(steady_clock::now() - begin, kLong / 2) << "it says so when it gives up";
  const std::string message = client.open(kA, Epoch{1}).error().message();
  EXPECT_NE(message.find("did not come back within 60 ms"), std::string::npos) << message;
  EXPECT_NE(message.find("hung up"), std::string::npos) << message;
  EXPECT_NE(message.find(daemon.socket_path()), std::string::npos) << message;
  daemon.come_back();
  EXPECT_FALSE(client.wait_connected(milliseconds(100)));
}

// The delay before a try can be longer than the time that is left; so can a stop of the process.
TEST(Reattach, IsTriedOnceMoreWhenItsTimeIsOver) {
  FakeDaemon daemon;
  ClientOptions options = daemon.client_options();
  options.reattach_for = milliseconds(400);
  Client client = *Client::attach(options, daemon.recipe());
  // Thrown out again and again, it takes its time: up to two seconds now.
  daemon.distort_attach([](auto& answer) {
    answer.status = static_cast<std::uint32_t>(ErrorCode::incompatible_recipe);
  });
  daemon.hang_up();
  daemon.wait_for(Type::attach, 2);
  daemon.distort_attach([](auto&) {});
  EXPECT_TRUE(client.wait_connected(kLong));
}

TEST(Reattach, IsNotTriedWhereItsTimeIsZero) {
  FakeDaemon daemon;
  ClientOptions options = daemon.client_options();
  options.reattach_for = milliseconds(0);
  Client client = *Client::attach(options, daemon.recipe());
  daemon.hang_up();
  ASSERT_TRUE(eventually([&] { return !client.is_connected(); }));
  EXPECT_FALSE(client.wait_connected(kLong));
  EXPECT_EQ(daemon.accepted(), 1u);
}

TEST(Reattach, EndingAClientThatTriesDoesNotWait) {
  for (const bool is_silent : {false, true}) {
    FakeDaemon daemon;
    std::optional<Client> client = daemon.attach();
    die_and_be_missed(daemon, *client);
    if (is_silent) {  // in the middle of a try, which has seconds left
      daemon.script(Type::hello, silence);
      daemon.come_back();
      daemon.wait_for(Type::hello, 2);
    } else {  // between two tries that are up to two seconds apart
      daemon.distort_attach([](auto& answer) {
        answer.status = static_cast<std::uint32_t>(ErrorCode::incompatible_recipe);
      });
      daemon.come_back();
      daemon.wait_for(Type::attach, 2);
    }
    const auto begin = steady_clock::now();
    client.reset();
    EXPECT_LT(steady_clock::now() - begin, milliseconds(1000));
  }
}

TEST(Reattach, ADaemonThatRefusesIsTriedAgainAndItsReasonIsSaid) {
  FakeDaemon daemon;
  Client client = daemon.attach();
  die_and_be_missed(daemon, client);
  daemon.distort_attach([](auto& answer) {
    answer.status = static_cast<std::uint32_t>(ErrorCode::incompatible_recipe);
  });
  daemon.come_back();
  daemon.wait_for(Type::attach, 2);
  EXPECT_TRUE(eventually([&] {
    const auto message = client.open(kA, Epoch{1}).error().message();
    return message.find("incompatible-recipe") != std::string::npos;
  }));
  daemon.distort_attach({});
  EXPECT_TRUE(client.wait_connected(kLong));
}

// FR-055: mappings are known by the boot token alone; an answer about any other memory or page is
// not taken for an answer about this one.
TEST(Reattach, AnAnswerAboutAnotherPageOrMemoryIsNone) {
  const std::array<void (*)(FakeDaemon::AttachAnswer&), 7> distortions = {
      [](auto& answer) { ++answer.reply.boot_token; },
      [](auto& answer) { ++answer.reply.cookie; },
      [](auto& answer) { ++answer.reply.page; },
      [](auto& answer) { answer.reply.tables_bytes += 4096; },
      [](auto& answer) { answer.reply.arena_bytes += 4096; },
      [](auto& answer) { answer.reply.pages_bytes += 4096; },
      [](auto& answer) { answer.fds.push_back(STDIN_FILENO); },
  };
  for (const auto& distort : distortions) {
    FakeDaemon daemon;
    const Client client = daemon.attach();
    die_and_be_missed(daemon, client);
    daemon.distort_attach(distort);
    daemon.come_back();
    daemon.wait_for(Type::attach, 3);
    EXPECT_FALSE(client.is_connected());
    daemon.distort_attach({});
    EXPECT_TRUE(client.wait_connected(kLong));
  }
}

// FR-065: a reply that is cut anywhere ends the call with an error of its own kind, at once, and
// the connection; the client comes back by itself and the next call works.
TEST(Reattach, AfterAReplyCutAtAnyByteTheNextCallWorks) {
  FakeDaemon daemon({.clients = 64});
  daemon.put(kA, Epoch{1}, TokenCount{5});
  const std::size_t whole = sizeof(protocol::FrameHeader) + sizeof(protocol::OperationResult);
  for (std::size_t size = 0; size < whole; size += size < 34 ? 1 : 9) {
    const Client client = daemon.attach();
    daemon.script(Type::explain, [&](const auto& received) {
      Bytes frame = daemon.honest_answer(received);
      frame.resize(size);
      return std::vector<Bytes>{frame};
    });
    const auto miss = client.get(kB, Epoch{1});
    EXPECT_EQ(miss.error().reason, MissReason::daemon_unavailable) << size;
    EXPECT_EQ(miss.error().cause, ErrorCode::daemon_unavailable) << size;
    daemon.script(Type::explain, {});
    ASSERT_TRUE(client.wait_connected(kLong)) << size;
    expect_tokens(client, kA, 5);
    EXPECT_EQ(client.get(kB, Epoch{1}).error().reason, MissReason::unknown_session);
  }
}

// ---- leases -------------------------------------------------------------------------------------

TEST(ReattachedLeases, OneGivenBackWhileTheDaemonIsAwayIsGivenBackAfterwards) {
  FakeDaemon daemon;
  Client client = daemon.attach();
  Context kept = *client.open(kB, Epoch{1});
  {
    const Context context = *client.open(kA, Epoch{1});
    die_and_be_missed(daemon, client);
  }
  daemon.come_back();
  EXPECT_TRUE(eventually([&] { return !daemon.is_held(kA); }));
  EXPECT_TRUE(daemon.is_held(kB));
  append_tokens(kept, 40);
}

// The daemon hangs up on whoever leaves many replies unread, and the thread that reads them
// settles.
TEST(ReattachedLeases, HundredsAreGivenBackInFewMessages) {
  constexpr std::size_t kContexts = 600;
  FakeDaemonOptions shard;
  shard.contexts = kContexts;
  FakeDaemon daemon(shard);
  Client client = daemon.attach();
  {
    std::vector<Context> contexts;
    for (std::size_t i = 0; i < kContexts; ++i) {
      contexts.push_back(*client.open(session_id("s" + std::to_string(i)), Epoch{1}));
    }
    die_and_be_missed(daemon, client);
  }
  daemon.come_back();
  EXPECT_TRUE(eventually([&] {
    for (std::size_t i = 0; i < kContexts; ++i) {
      if (daemon.is_held(session_id("s" + std::to_string(i)))) return false;
    }
    return true;
  }));
  EXPECT_EQ(daemon.received(Type::close), (kContexts + 255) / 256);
}

TEST(ReattachedLeases, ACloseThatWasSentAndNotDoneIsSentAgain) {
  FakeDaemon daemon;
  Client client = daemon.attach();
  daemon.script(Type::close, silence);
  { const Context context = *client.open(kA, Epoch{1}); }
  daemon.wait_for(Type::close, 1);
  daemon.script(Type::close, {});
  daemon.hang_up();
  EXPECT_TRUE(eventually([&] { return !daemon.is_held(kA); }));
}

// Does what comes and answers nothing, as a daemon that dies between the two.
FakeDaemon::Script do_and_say_nothing(FakeDaemon& daemon) {
  return [&](const FakeDaemon::Received& received) {
    static_cast<void>(daemon.honest_answer(received));
    return std::vector<Bytes>{};
  };
}

TEST(ReattachedLeases, AnOpenThatWasDoneAndNotAnsweredIsGivenBack) {
  FakeDaemon daemon;
  Client client = daemon.attach();
  daemon.script(Type::open, do_and_say_nothing(daemon));
  std::thread hang_up([&] {
    daemon.wait_for(Type::open, 1);
    EXPECT_TRUE(daemon.is_held(kA));
    daemon.hang_up();
  });
  EXPECT_TRUE(client.open(kA, Epoch{1}).error().is(ErrorCode::daemon_unavailable));
  hang_up.join();
  EXPECT_TRUE(eventually([&] { return !daemon.is_held(kA); }));
  EXPECT_EQ(daemon.received(Type::open), 1u) << "it is not asked a second time";
}

TEST(ReattachedLeases, OneThatSomebodyHereStillSharesIsKept) {
  FakeDaemon daemon;
  Client client = daemon.attach();
  Context context = *client.open(kA, Epoch{1});
  daemon.script(Type::open, do_and_say_nothing(daemon));
  std::thread hang_up([&] {
    daemon.wait_for(Type::open, 2);
    daemon.hang_up();
  });
  EXPECT_TRUE(client.open(kA, Epoch{1}).error().is(ErrorCode::daemon_unavailable));
  hang_up.join();
  ASSERT_TRUE(client.wait_connected(kLong));
  append_tokens(context, 40);
  EXPECT_TRUE(daemon.is_held(kA));
  EXPECT_EQ(daemon.received(Type::close), 0u);
}

TEST(ReattachedLeases, OneWhoseGenerationMovedUnheardIsGivenBackAllTheSame) {
  FakeDaemon daemon;
  Client client = daemon.attach();
  std::optional<Context> context = *client.open(kA, Epoch{1});
  append_tokens(*context, 20);
  daemon.script(Type::truncate, do_and_say_nothing(daemon));
  std::thread hang_up([&] {
    daemon.wait_for(Type::truncate, 1);
    daemon.hang_up();
  });
  EXPECT_TRUE(context->truncate(TokenCount{3}).error().is(ErrorCode::daemon_unavailable));
  hang_up.join();
  ASSERT_TRUE(client.wait_connected(kLong));
  EXPECT_TRUE(context->append(TokenCount{100}).error().is(ErrorCode::lease_lost));
  context.reset();
  EXPECT_TRUE(eventually([&] { return !daemon.is_held(kA); }));
}

TEST(ReattachedLeases, AnotherClientsLeasesAreLeftAlone) {
  FakeDaemon daemon;
  Client client = daemon.attach();
  Client other = daemon.attach();
  const Context theirs = *other.open(kA, Epoch{1});
  const Context mine = *client.open(kB, Epoch{1});
  daemon.hang_up();
  daemon.wait_for(Type::attach, 4);
  ASSERT_TRUE(client.wait_connected(kLong) && other.wait_connected(kLong));
  EXPECT_TRUE(client.get(kA, Epoch{1}).has_value()) << "its answer comes behind every CLOSE";
  EXPECT_EQ(daemon.received(Type::close), 0u);
}

// ---- forks --------------------------------------------------------------------------------------

// FR-076: a child that is forked while its parent looks for the daemon does not look for it.
TEST(Reattach, AChildForkedDuringAnOutageIsInert) {
  FakeDaemon daemon;
  std::optional<Client> client = daemon.attach();
  std::optional<Context> context = *client->open(kA, Epoch{1});
  die_and_be_missed(daemon, *client);
  for (int i = 0; i < 10; ++i) {
    testing::ForkedChild child([&] {
      if (client->is_connected() || client->wait_connected(kLong)) return 1;
      const auto miss = client->get(kA, Epoch{1});
      if (miss || miss.error().cause != ErrorCode::used_after_fork) return 2;
      if (!context->append(TokenCount{1}).error().is(ErrorCode::used_after_fork)) return 3;
      context.reset();
      client.reset();
      return 0;
    });
    EXPECT_EQ(child.exit_code(), 0);
    std::this_thread::sleep_for(milliseconds(i));
  }
  daemon.come_back();
  ASSERT_TRUE(client->wait_connected(kLong));
  append_tokens(*context, 20);
  EXPECT_EQ(daemon.received(Type::attach), 2u) << "the parent's";
}

// ---- delays -------------------------------------------------------------------------------------

TEST(RetryDelay, GrowsFromTenMillisecondsToTwoSecondsAndNoFurther) {
  const auto longest = [](std::uint32_t tries) {
    std::chrono::microseconds found{0};
    for (std::uint64_t random = 0; random < 2'000'000; random += 9'999) {
      found = std::max(found, client::retry_delay(tries, random));
    }
    return found;
  };
  EXPECT_LE(longest(0), milliseconds(10));
  for (std::uint32_t tries = 0; tries < client::kSlowestTry; ++tries) {
    EXPECT_GT(longest(tries + 1), longest(tries)) << tries;
  }
  EXPECT_GT(longest(client::kSlowestTry), milliseconds(1900));
  for (const std::uint32_t tries : {8u, 9u, 40u, 0xffff'ffffu}) {
    EXPECT_LE(longest(tries), milliseconds(2000));
    EXPECT_GT(client::retry_delay(tries, 0), milliseconds(0)) << "no try follows at once";
  }
}

TEST(RetryDelay, SpreadsOverItsWholeRange) {
  std::set<std::int64_t> hundreds_of_ms;
  std::uint64_t random = 1;
  for (int client = 0; client < 500; ++client) {
    random = random * 6364136223846793005 + 1442695040888963407;
    const auto delay = client::retry_delay(client::kSlowestTry, random >> 16);
    hundreds_of_ms.insert(delay / milliseconds(100));
  }
  EXPECT_GE(hundreds_of_ms.size(), 20u);
}

}  // namespace
}  // namespace hotkv
