// Operations on slots, generations and lengths that are not the client's.

#include <gtest/gtest.h>
#include <sys/mman.h>
#include <sys/wait.h>

#include <cstring>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "tests/hostile/conversation.hpp"
#include "tests/support/under_fire.hpp"

namespace hotkv::testing {
namespace {

using protocol::OperationResult;
using protocol::Type;

class ForeignOperations : public UnderFire {
 protected:
  [[nodiscard]] std::uint64_t lost_leases() const { return refusals(daemon_, "lease-lost"); }
};

// APPEND, TRUNCATE and CLOSE of a generation; how many of them were refused as lease-lost.
std::uint64_t refused_of_three(RawClient& client, std::uint32_t generation) {
  std::uint64_t refused = 0;
  for (const OperationResult& result :
       {client.append("session", 1, generation, 100),
        client.truncate("session", 1, generation, 0, 0), client.close("session", 1, generation)}) {
    if (is_error(result, ErrorCode::lease_lost)) ++refused;
  }
  return refused;
}

// A holder whose context is in its third generation, with room for 20 tokens.
class HeldContext {
 public:
  explicit HeldContext(const DaemonProcess& daemon)
      : client(attached_client(daemon.control_path())) {
    const OperationResult first = client.open("session", 1);
    (void)client.close("session", 1, first.generation);
    const OperationResult second = client.open("session", 1);
    (void)client.close("session", 1, second.generation);
    generation = client.open("session", 1).generation;
    EXPECT_EQ(generation, first.generation + 2);
    EXPECT_TRUE(is_done(client.append("session", 1, generation, 20)));
  }
  [[nodiscard]] bool still_stands() {
    const OperationResult more = client.append("session", 1, generation, 40);
    return is_done(more) && more.generation == generation && more.writable_tokens >= 40;
  }

  RawClient client;
  std::uint32_t generation = 0;
};

TEST_F(ForeignOperations, AnothersContextIsRefusedWhateverGenerationIsNamed) {
  HeldContext held(daemon_);
  RawClient thief = attached_client(daemon_.control_path());
  const std::vector<std::uint32_t> generations{
      held.generation, 0, held.generation - 1, held.generation + 1, 0xffff'fff0, 0xffff'ffff};
  for (const std::uint32_t generation : generations) {
    EXPECT_EQ(refused_of_three(thief, generation), 3U) << generation;
  }
  EXPECT_TRUE(is_error(thief.open("session", 1), ErrorCode::session_busy));
  EXPECT_EQ(lost_leases(), 3 * generations.size());
  EXPECT_EQ(refusals(daemon_, "session-busy"), 1U);
  EXPECT_TRUE(held.still_stands());
}

TEST_F(ForeignOperations, OnesOwnContextIsRefusedInEveryGenerationButTheOneThatStands) {
  HeldContext held(daemon_);
  const std::vector<std::uint32_t> generations{
      0, held.generation - 1, held.generation + 1, 0x7fff'ffff, 0xffff'fff0, 0xffff'ffff};
  for (const std::uint32_t generation : generations) {
    EXPECT_EQ(refused_of_three(held.client, generation), 3U) << generation;
  }
  EXPECT_EQ(lost_leases(), 3 * generations.size());
  EXPECT_TRUE(held.still_stands());
}

TEST_F(ForeignOperations, AReleaseOfAnotherGenerationLeavesTheContext) {
  HeldContext held(daemon_);
  RawClient other = attached_client(daemon_.control_path());
  for (const std::uint32_t generation :
       {held.generation - 2, held.generation - 1, held.generation + 1, 0xffff'ffffU}) {
    const auto results = other.operate<protocol::ReleaseOperation>(
        Type::release, {{context_name("session", 1), generation, 0}});
    ASSERT_EQ(results.size(), 1U);
    EXPECT_TRUE(is_error(results.front(), ErrorCode::lease_lost)) << generation;
  }
  EXPECT_EQ(lost_leases(), 4U);
  EXPECT_TRUE(held.still_stands());
}

TEST_F(ForeignOperations, ASecondCloseAndASecondReleaseChangeNothing) {
  HeldContext held(daemon_);
  EXPECT_TRUE(is_done(held.client.close("session", 1, held.generation)));
  for (int again = 0; again < 3; ++again) {
    EXPECT_TRUE(is_error(held.client.close("session", 1, held.generation), ErrorCode::lease_lost));
  }
  EXPECT_EQ(lost_leases(), 3U);
  EXPECT_TRUE(is_done(held.client.release("session", 1)));
  for (int again = 0; again < 3; ++again) {
    EXPECT_TRUE(is_miss(held.client.release("session", 1), MissReason::released));
    EXPECT_TRUE(is_miss(held.client.close("session", 1, held.generation), MissReason::released));
  }
  const auto shard = shard_status(daemon_, "model-a");
  EXPECT_EQ(shard.at("counters").at("releases"), 1);
  EXPECT_EQ(shard.at("counters").at("operations_missed").at("released"), 6);
  EXPECT_EQ(shard.at("counters").at("contexts_ended").at("released"), 1);
  EXPECT_EQ(shard.at("account").at("used_bytes"), 0) << shard;
}

TEST_F(ForeignOperations, ATruncateThatIsNoRollBackIsRefusedAndTheLengthStands) {
  HeldContext held(daemon_);
  struct Range {
    std::uint32_t from, to;
  };
  // Nothing is published: every one of these speaks of tokens that are not there.
  const std::vector<Range> ranges{{0, 1},  {0, 20},          {1, 2},           {20, 10},
                                  {20, 5}, {0, 0xffff'ffff}, {0xffff'ffff, 1}, {0x8000'0000, 3}};
  for (const auto [from, to] : ranges) {
    const OperationResult result = held.client.truncate("session", 1, held.generation, from, to);
    EXPECT_TRUE(
        is_error(result, from == 0 ? ErrorCode::invalid_argument : ErrorCode::length_mismatch))
        << from << " to " << to << " code " << result.code;
  }
  EXPECT_EQ(refusals(daemon_, "length-mismatch") + refusals(daemon_, "invalid-argument"),
            ranges.size());
  EXPECT_TRUE(is_done(held.client.explain("session", 1, 0)));
  EXPECT_TRUE(held.still_stands());
}

TEST_F(ForeignOperations, AppendsBeyondEveryLengthAreRefusedAndNobodyIsEvictedForThem) {
  HeldContext held(daemon_);
  RawClient neighbour = attached_client(daemon_.control_path());
  ASSERT_TRUE(is_done(neighbour.open("neighbour", 1)));
  const std::vector<std::uint32_t> lengths{0x0010'0000, 0x7fff'fff0, 0x7fff'ffff,
                                           0x8000'0000, 0xffff'fff0, 0xffff'ffff};
  for (const std::uint32_t length : lengths) {
    const OperationResult result = held.client.append("session", 1, held.generation, length);
    EXPECT_TRUE(is_error(result, ErrorCode::budget_exceeded) ||
                is_error(result, ErrorCode::invalid_argument))
        << length << " code " << result.code;
  }
  EXPECT_EQ(refusals(daemon_, "budget-exceeded") + refusals(daemon_, "invalid-argument"),
            lengths.size());
  EXPECT_TRUE(is_done(neighbour.explain("neighbour", 1, 0)));
  EXPECT_TRUE(held.still_stands());
}

// What users of the library see: the operation, the session, and why.
TEST_F(ForeignOperations, TheLibrarySaysWhatWasRefusedOnWhatAndWhy) {
  KvWorker holder(daemon_.control_path());
  KvWorker thief(daemon_.control_path());
  ASSERT_TRUE(holder.open("ses\nsion", 1));
  const std::string busy = why(thief.open("ses\nsion", 1));
  for (const char* part : {"open", R"("ses\x0asion")", "session-busy", "pid "}) {
    EXPECT_NE(busy.find(part), std::string::npos) << part << ": " << busy;
  }
  EXPECT_NE(busy.find("pid " + std::to_string(::getpid())), std::string::npos) << busy;
  ASSERT_TRUE(holder.append("ses\nsion", 20));
  const std::string beyond = why(holder.context("ses\nsion").truncate(TokenCount{21}));
  for (const char* part : {"truncate", R"(ses\x0asion)", "20"}) {
    EXPECT_NE(beyond.find(part), std::string::npos) << part << ": " << beyond;
  }
}

// ---- two openers --------------------------------------------------------------------------------

struct OpenedBy {
  pid_t pid;
  OperationResult result;
  char text[256];
};

constexpr int kRounds = 20;
constexpr int kOpeners = 2;
using AllOpened = std::array<std::array<OpenedBy, kOpeners>, kRounds>;

// Opens one session after the other at the parent's word, and holds what it got.
int open_in_turn(const std::string& control_path, const Turns& turns, AllOpened& all, int self) {
  RawClient client(control_path);
  (void)client.hello();
  client.stay_alive(client.attach(small_recipe(), Access::write));
  for (int round = 0; round < kRounds; ++round) {
    turns.arrive_and_wait();
    const RawReply reply =
        client.ask(right_frame(Type::open, small_recipe(), "session-" + std::to_string(round), 0));
    OpenedBy& opened = all[static_cast<std::size_t>(round)][static_cast<std::size_t>(self)];
    opened.pid = ::getpid();
    if (reply.results().size() == 1) opened.result = reply.results().front();
    std::strncpy(opened.text, reply.text.c_str(), sizeof opened.text - 1);
  }
  turns.arrive_and_wait();  // so that no lease ends before both have asked
  return 0;
}

TEST_F(ForeignOperations,
       OfTwoProcessesThatOpenOneSessionAtOnceOneWinsAndTheOtherIsToldWhoHoldsIt) {
  auto* const all = static_cast<AllOpened*>(::mmap(
      nullptr, sizeof(AllOpened), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0));
  ASSERT_NE(all, MAP_FAILED);
  std::array<Turns, kOpeners> turns;
  std::vector<ForkedChild> children;
  for (int self = 0; self < kOpeners; ++self) {
    children.emplace_back([&, self] {
      return open_in_turn(daemon_.control_path(), turns[static_cast<std::size_t>(self)], *all,
                          self);
    });
  }
  for (int round = 0; round <= kRounds; ++round) {
    for (Turns& each : turns) ASSERT_TRUE(each.wait_for_child()) << daemon_.err();
    for (const Turns& each : turns) each.go_on();
  }
  for (ForkedChild& child : children) EXPECT_EQ(child.exit_code(), 0);
  for (const auto& round : *all) {
    const bool first_won = is_done(round[0].result);
    const OpenedBy& winner = round[first_won ? 0 : 1];
    const OpenedBy& loser = round[first_won ? 1 : 0];
    EXPECT_TRUE(is_done(winner.result));
    EXPECT_TRUE(is_error(loser.result, ErrorCode::session_busy)) << loser.result.code;
    EXPECT_NE(std::string(loser.text).find("pid " + std::to_string(winner.pid)), std::string::npos)
        << loser.text;
  }
  EXPECT_EQ(refusals(daemon_, "session-busy"), static_cast<unsigned>(kRounds));
  ::munmap(all, sizeof(AllOpened));
}

}  // namespace
}  // namespace hotkv::testing
