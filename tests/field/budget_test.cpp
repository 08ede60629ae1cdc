// Budget, allocator, accounting.

#include <gtest/gtest.h>
#include <sys/socket.h>
#include <sys/un.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "shared/seqpacket.hpp"
#include "tests/support/raw_client.hpp"
#include "tests/support/sanitized.hpp"
#include "tests/support/small_daemon.hpp"

namespace hotkv::testing {
namespace {

constexpr std::uint64_t kMiB = std::uint64_t{1} << 20;

constexpr int kSlowReaders = kIsSanitized ? 2 : 12;

class Budget : public SmallDaemon {
 protected:
  explicit Budget(const std::vector<std::string>& flags = {}) : SmallDaemon(flags) {}

  // What the daemon itself takes, without the shards' files.
  std::uint64_t private_bytes() const { return process_bytes(daemon_.pid(), "RssAnon"); }
  std::uint64_t evicted() const { return shard_number("/counters/contexts_ended/evicted-lru"); }

  RawClient attached() const {
    return attached_client(daemon_.control_path(), Access::write, worker_recipe());
  }
  // Opens sessions [from, to) with ids of the greatest length, 256 a message.
  void open_many(RawClient& client, std::uint32_t from, std::uint32_t to) const {
    while (from < to) {
      std::vector<protocol::OpenOperation> operations;
      for (; from < to && operations.size() < 256; ++from) {
        std::string name = std::to_string(from);
        name.resize(SessionId::kBytesMax, 'x');
        protocol::OpenOperation operation{};
        operation.context = context_name(name, 1);
        std::ranges::copy(client.fingerprint(), operation.fingerprint);
        operations.push_back(operation);
      }
      for (const auto& result : client.operate(protocol::Type::open, operations)) {
        ASSERT_EQ(result.outcome, static_cast<std::uint32_t>(protocol::Outcome::done));
      }
    }
  }
};

// A message of as many operations as there may be, whose answer takes 14 KiB.
Bytes full_explain(const RawClient& client) {
  protocol::ExplainOperation operation{};
  operation.context = context_name("nobody", 1);
  operation.match = static_cast<std::uint32_t>(LengthMatch::any);
  std::ranges::copy(client.fingerprint(), operation.fingerprint);
  const std::vector<protocol::ExplainOperation> operations(protocol::kOperationsMax, operation);
  return make_frame(protocol::Type::explain, 7, operations);
}

// FR-028: clients that never read cost a bounded queue each, and as many contexts go as the bytes
// demand, a thousand times over.
TEST_F(Budget, EvictionBesideDeafClientsTakesWhatTheBytesDemandAndNoMore) {
  constexpr int kDeaf = 50;
  constexpr int kFarMoreThanFits = 1000;
  constexpr std::uint64_t kQueueBytesMax = 4 * protocol::kFrameBytesMax;
  KvWorker writer(daemon_.control_path());
  const auto disconnects = [&] {
    return status_number(daemon_, "/server/disconnects/not-reading");
  };
  // One message at a time, to learn how many answers the kernel and the daemon keep for a client.
  int fits = 0;
  for (RawClient first = attached(); disconnects() == 0; ++fits) {
    ASSERT_LT(fits, kFarMoreThanFits);
    (void)first.send(full_explain(first));
  }
  const std::uint64_t before = private_bytes();
  std::vector<RawClient> deaf;
  for (int i = 0; i < kDeaf; ++i) {
    deaf.push_back(attached());
    for (int frames = 0; frames < fits - 4; ++frames) {
      ASSERT_TRUE(deaf.back().send(full_explain(deaf.back())));
    }
  }
  if (!kIsSanitized) {
    EXPECT_TRUE(eventually([&] { return private_bytes() > before + kDeaf * kQueueBytesMax / 2; }))
        << "the queues are not as good as full";
  }
  constexpr std::uint32_t kOver = 1000;
  for (std::uint32_t i = 0; i < kChunks + kOver; ++i) {
    const std::string name = "s" + std::to_string(i);
    ASSERT_TRUE(writer.open(name, 1));
    const auto written = writer.append(name, 1);
    ASSERT_TRUE(written.has_value()) << why(written);
    writer.drop(name);
  }
  EXPECT_EQ(evicted(), kOver);
  EXPECT_EQ(shard_number("/account/used_bytes"), kChunks * kChunkBytes);
  EXPECT_EQ(disconnects(), 1U) << "their queues are not there any more";
  if (!kIsSanitized) {
    EXPECT_LE(private_bytes(), before + kDeaf * kQueueBytesMax + 4 * kMiB);
  }
}

class BudgetOfManySessions : public Budget {
 protected:
  static constexpr std::uint32_t kCap = 20'000;
  BudgetOfManySessions() : Budget({"--session-cap=20000", "--tombstones=1000"}) {}
};

// FR-029: slow readers of the largest replies there are take none of the cache's memory, and no
// more of the daemon's than their places allow.
TEST_F(BudgetOfManySessions, SlowReadersOfBigRepliesEvictNothing) {
  RawClient client = attached();
  open_many(client, 0, 10'000);
  KvWorker writer(daemon_.control_path());
  ASSERT_EQ(whole_budget_refusal(writer), "");
  const std::uint64_t one_reply = admin_get(daemon_, "/contexts?limit=10000").size();
  ASSERT_GT(one_reply, 2 * kMiB);
  const std::uint64_t before = private_bytes();
  std::vector<UniqueFd> slow;
  const auto address = socket_address(daemon_.admin_path()).value();
  const std::string request = "GET /contexts?limit=10000 HTTP/1.1\r\nHost: x\r\n\r\n";
  for (int i = 0; i < kSlowReaders; ++i) {
    slow.emplace_back(::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0));
    ASSERT_EQ(
        ::connect(slow.back().get(), reinterpret_cast<const sockaddr*>(&address), sizeof address),
        0);
    ASSERT_EQ(::send(slow.back().get(), request.data(), request.size(), MSG_NOSIGNAL),
              static_cast<ssize_t>(request.size()));
  }
  // Answered after all of those: they are served in the order in which they came.
  EXPECT_GE(status_number(daemon_, "/server/admin_requests"), kSlowReaders + 1U);
  const std::uint64_t after = private_bytes();
  std::printf("a reply of %.1f MiB, to %d slow readers: %.1f MiB\n",
              static_cast<double>(one_reply) / kMiB, kSlowReaders,
              (static_cast<double>(after) - static_cast<double>(before)) / kMiB);
  if (!kIsSanitized) {
    EXPECT_LE(after, before + kSlowReaders * 2 * one_reply + 16 * kMiB);
  }
  EXPECT_EQ(evicted(), 0U);
  ASSERT_TRUE(writer.client().get(session_id("whole budget"), Epoch{1}).has_value());
}

// FR-034: sessions without end, ids of the greatest length: the daemon's own memory is bounded by
// the cap, and what is left of those that went is too.
TEST_F(BudgetOfManySessions, SessionsWithoutEndTakeABoundedPrivateMemory) {
  RawClient client = attached();
  open_many(client, 0, 100);
  const std::uint64_t before = private_bytes();
  open_many(client, 100, kCap);
  const std::uint64_t full = private_bytes();
  open_many(client, kCap, 3 * kCap);
  const std::uint64_t churned = private_bytes();
  std::printf("%.0f private bytes a session, %+.0f KiB by churn\n",
              static_cast<double>(full - before) / kCap,
              (static_cast<double>(churned) - static_cast<double>(full)) / 1024);
  if (!kIsSanitized) {
    EXPECT_LE(full, before + std::uint64_t{kCap} * 1024);
    EXPECT_LE(churned, full + 4 * kMiB);
  }
  EXPECT_EQ(shard_number("/contexts"), kCap);
  EXPECT_EQ(evicted(), 2 * kCap);
  EXPECT_LE(shard_number("/tombstones"), kCap + 1000U);
}

// FR-040: agents in turn, one more than there is room for beside a hot session: every round says so
// in counters, and a session in use is not drawn in.
TEST_F(Budget, AWorkingSetOneTooLargeShowsInTheCountersAndSparesTheHotSession) {
  constexpr std::uint32_t kAgents = 8;
  constexpr std::uint32_t kRounds = 10;
  constexpr std::uint32_t kTokens = (kChunks - 1) / (kAgents - 1) * kChunkTokens;
  // A look at memory counts from the beginning of its tick of 16 ms: a round is longer than one.
  constexpr std::chrono::milliseconds kTurn{4};
  KvWorker worker(daemon_.control_path());
  ASSERT_TRUE(worker.open("hot", 1));
  ASSERT_TRUE(worker.append("hot", 1));
  std::uint32_t hits = 0;
  for (std::uint32_t turn = 0; turn < kAgents * kRounds; ++turn) {
    const std::string name = "agent" + std::to_string(turn % kAgents);
    if (worker.client().get(session_id(name), Epoch{1})) {
      ++hits;
    } else {
      ASSERT_TRUE(worker.open(name, 1));
      ASSERT_TRUE(worker.append(name, kTokens));
    }
    EXPECT_TRUE(worker.client().get(session_id("hot"), Epoch{1})) << "turn " << turn;
    std::this_thread::sleep_for(kTurn);
  }
  EXPECT_EQ(hits, 0U);
  EXPECT_EQ(evicted(), kAgents * (kRounds - 1) + 1);
  EXPECT_EQ(shard_number("/counters/misses/evicted-lru"), kAgents * (kRounds - 1));
  EXPECT_EQ(shard_number("/counters/evictions_in_vain"), 0U);
}

}  // namespace
}  // namespace hotkv::testing
