#include "daemon/server/dispatcher.hpp"

#include <gtest/gtest.h>
#include <spdlog/logger.h>

#include <list>
#include <map>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "tests/support/plain_memory.hpp"
#include "tests/support/raw_client.hpp"

namespace hotkv::server {
namespace {

using protocol::OperationResult;
using protocol::Type;
using testing::context_name;
using testing::make_frame;

// Plain memory, memory orders that stay until the test answers them, failures on demand.
class FakeShardFiles final : public ShardFiles {
 public:
  std::expected<PreparedShard, Error> prepare(const core::ShardPlan& plan) override {
    if (prepare_fails) return std::unexpected(system_error("create", "tables", ENOMEM));
    const auto& tables = memory_.emplace_back(plan.layout.tables_bytes);
    const auto& arena = memory_.emplace_back(plan.layout.arena_bytes);
    const auto& pages = memory_.emplace_back(plan.layout.pages_bytes);
    return PreparedShard{{tables.bytes(), arena.bytes(), pages.bytes()}, {1, {2, 3}}};
  }
  void keep(core::ShardId) override { calls.push_back("keep"); }
  void drop(core::ShardId shard) override { dropped.push_back(shard); }
  std::expected<AttachFiles, Error> open_for(core::ClientId client, Access) override {
    calls.push_back("open");
    if (open_fails) return std::unexpected(system_error("reopen", "arena", EMFILE));
    alive.insert(client);
    return AttachFiles{};
  }
  std::expected<void, Error> run(const core::MemoryOrder& order) override {
    if (run_fails) {
      return std::unexpected(Error{ErrorCode::too_many_waiting, "provision", "", "full", 0});
    }
    orders.push_back(order.id);
    return {};
  }
  std::expected<std::uint64_t, Error> random_number() override { return 4; }
  bool is_alive(core::ClientId client) override { return alive.contains(client); }

  bool prepare_fails = false;
  bool open_fails = false;
  bool run_fails = false;
  std::set<core::ClientId> alive;
  std::vector<core::ShardId> dropped;
  std::vector<std::uint64_t> orders;
  std::vector<std::string> calls;

 private:
  std::list<test::PlainMemory> memory_;
};

struct Client {
  Client() {
    conversation.peer = {1000, 1};
    conversation.hang_up = [this] { hung_up = true; };
    conversation.send = [this](OutgoingFrame frame) { replies.push_back(std::move(frame.bytes)); };
  }
  [[nodiscard]] protocol::FrameHeader header(std::size_t index) const {
    protocol::FrameHeader header;
    std::memcpy(&header, replies.at(index).data(), sizeof header);
    return header;
  }
  [[nodiscard]] OperationResult result(std::size_t reply, std::size_t index) const {
    OperationResult result;
    std::memcpy(&result,
                replies.at(reply).data() + sizeof(protocol::FrameHeader) + index * sizeof result,
                sizeof result);
    return result;
  }
  [[nodiscard]] protocol::FrameHeader last() const { return header(replies.size() - 1); }

  Conversation conversation;
  std::vector<FrameBytes> replies;
  bool hung_up = false;
};

class DispatcherTest : public ::testing::Test {
 protected:
  static core::Limits limits() {
    core::Limits limits;
    limits.max_bytes = 1 << 20;
    limits.session_cap = 2048;
    limits.clients_per_shard = 2;
    limits.chunk_tokens = 16;
    return limits;
  }

  void attach(Client& client, Access access = Access::write) {
    dispatcher.handle(client.conversation,
                      make_frame<protocol::HelloRequest>(Type::hello, 1, {{1, 1}}));
    try_attach(client, access);
    ASSERT_TRUE(client.conversation.client.has_value());
    client.replies.clear();
  }
  void try_attach(Client& client, Access access = Access::write) {
    protocol::AttachRequest request{};
    request.recipe = encode_recipe(recipe);
    request.access = static_cast<std::uint32_t>(access);
    dispatcher.handle(client.conversation,
                      make_frame<protocol::AttachRequest>(Type::attach, 2, {request}));
  }
  // The generations.
  std::vector<std::uint32_t> open(Client& client, const std::vector<std::string>& sessions) {
    std::vector<protocol::OpenOperation> operations(sessions.size());
    for (std::size_t index = 0; index < sessions.size(); ++index) {
      operations[index].context = context_name(sessions[index], 1);
      std::ranges::copy(recipe.fingerprint(), operations[index].fingerprint);
    }
    dispatcher.handle(client.conversation, make_frame(Type::open, 3, operations));
    std::vector<std::uint32_t> generations;
    for (std::size_t index = 0; index < sessions.size(); ++index) {
      generations.push_back(client.result(client.replies.size() - 1, index).generation);
    }
    client.replies.clear();
    return generations;
  }

  Recipe recipe = testing::small_recipe();
  std::vector<std::string> certified{"llama"};
  FakeShardFiles files;
  core::Core core{limits(), [] { return std::uint64_t{1000}; }, files};
  ServerCounters counters;
  spdlog::logger logger{"none"};  // writes nowhere
  EventLog log{logger, [] { return std::chrono::milliseconds(1000); }};
  Attacher attacher{core, files, certified};
  int asked_to_go_on = 0;
  Dispatcher dispatcher{core, files, attacher, counters, log, [this] { ++asked_to_go_on; }};
};

TEST_F(DispatcherTest, AnAppendThatWaitsIsAnsweredWhenAllItsMemoryHasCome) {
  Client client;
  attach(client);
  const auto generations = open(client, {"a", "b"});
  dispatcher.handle(client.conversation, make_frame<protocol::AppendOperation>(
                                             Type::append, 8,
                                             {{context_name("a", 1), generations[0], 10},
                                              {context_name("nobody", 1), 1, 10},
                                              {context_name("b", 1), generations[1], 20}}));
  EXPECT_TRUE(client.replies.empty());
  EXPECT_EQ(client.conversation.waiting_frames, 1U);
  ASSERT_FALSE(files.orders.empty());
  while (!files.orders.empty()) {
    EXPECT_TRUE(client.replies.empty());
    const std::uint64_t order = files.orders.front();
    files.orders.erase(files.orders.begin());
    dispatcher.memory_order_done(order, {}, true);
  }
  ASSERT_EQ(client.replies.size(), 1U);
  EXPECT_EQ(client.last().request_id, 8U);
  EXPECT_EQ(client.result(0, 0).outcome, 0U);
  EXPECT_GE(client.result(0, 0).writable_tokens, 10U);
  EXPECT_EQ(client.result(0, 1).outcome, static_cast<std::uint32_t>(protocol::Outcome::miss));
  EXPECT_GE(client.result(0, 2).writable_tokens, 20U);
  EXPECT_EQ(client.conversation.waiting_frames, 0U);
  EXPECT_EQ(counters.waiting_frames, 0U);
}

TEST_F(DispatcherTest, OtherFramesOvertakeAWaitingOne) {
  Client client;
  attach(client);
  const auto generations = open(client, {"a"});
  dispatcher.handle(client.conversation,
                    make_frame<protocol::AppendOperation>(
                        Type::append, 8, {{context_name("a", 1), generations[0], 10}}));
  EXPECT_TRUE(client.replies.empty());
  open(client, {"b"});
  dispatcher.memory_order_done(files.orders.at(0), {}, true);
  ASSERT_EQ(client.replies.size(), 1U);
  EXPECT_EQ(client.last().request_id, 8U);
}

TEST_F(DispatcherTest, AnOrderThatCannotBeginIsAnErrorAtOnce) {
  Client client;
  attach(client);
  const auto generations = open(client, {"a"});
  files.run_fails = true;
  dispatcher.handle(client.conversation,
                    make_frame<protocol::AppendOperation>(
                        Type::append, 8, {{context_name("a", 1), generations[0], 10}}));
  ASSERT_EQ(client.replies.size(), 1U);
  EXPECT_EQ(client.result(0, 0).outcome, static_cast<std::uint32_t>(protocol::Outcome::error));
  EXPECT_EQ(core.verify(), std::nullopt);
}

TEST_F(DispatcherTest, MemoryThatFailsToComeIsAnErrorOfItsOperation) {
  Client client;
  attach(client);
  const auto generations = open(client, {"a"});
  dispatcher.handle(client.conversation,
                    make_frame<protocol::AppendOperation>(
                        Type::append, 8, {{context_name("a", 1), generations[0], 10}}));
  dispatcher.memory_order_done(
      files.orders.at(0),
      std::unexpected(Error{ErrorCode::memory_unavailable, "provision", "memory", "none", 0}),
      true);
  ASSERT_EQ(client.replies.size(), 1U);
  EXPECT_EQ(client.result(0, 0).code, static_cast<std::uint32_t>(ErrorCode::memory_unavailable));
}

TEST_F(DispatcherTest, MemoryForAClientThatHungUpIsNobodysAnswer) {
  Client client;
  attach(client);
  const auto generations = open(client, {"a"});
  dispatcher.handle(client.conversation,
                    make_frame<protocol::AppendOperation>(
                        Type::append, 8, {{context_name("a", 1), generations[0], 10}}));
  dispatcher.disconnected(client.conversation);
  dispatcher.disconnected(client.conversation);
  EXPECT_EQ(counters.waiting_frames, 0U);
  dispatcher.memory_order_done(files.orders.at(0), {}, true);
  EXPECT_TRUE(client.replies.empty());
  EXPECT_EQ(core.verify(), std::nullopt);
}

// A client that has files of a shard must find them with the next daemon.
TEST_F(DispatcherTest, AShardIsKeptBeforeItsFirstClientGetsItsFiles) {
  Client client;
  attach(client);
  EXPECT_EQ(files.calls, (std::vector<std::string>{"keep", "open"}));
}

TEST_F(DispatcherTest, LeasesOfAClientThatIsGoneEndInTurnsOfTheirOwn) {
  Client gone;
  attach(gone);
  for (int message = 0; message < 7; ++message) {
    std::vector<std::string> sessions;
    for (int i = 0; i < 200; ++i) sessions.push_back(std::to_string(message * 200 + i));
    (void)open(gone, sessions);
  }
  EXPECT_EQ(asked_to_go_on, 0);
  files.alive.clear();
  dispatcher.disconnected(gone.conversation);
  int turns = 0;
  while (std::exchange(asked_to_go_on, 0) > 0) {
    ASSERT_LT(++turns, 100);
    EXPECT_EQ(core.status().shards.at(0).clients, 1U);
    dispatcher.go_on();
  }
  EXPECT_GE(turns, 2);
  EXPECT_EQ(core.status().shards.at(0).clients, 0U);
}

TEST_F(DispatcherTest, AnAttachThatFailsHalfWayLeavesNothingTakenAndCanBeTriedAgain) {
  Client client;
  dispatcher.handle(client.conversation,
                    make_frame<protocol::HelloRequest>(Type::hello, 1, {{1, 1}}));
  files.prepare_fails = true;
  try_attach(client);
  EXPECT_EQ(client.last().status, static_cast<std::uint32_t>(ErrorCode::system_error));
  EXPECT_TRUE(core.status().shards.empty());
  files.prepare_fails = false;
  files.open_fails = true;
  try_attach(client);
  EXPECT_EQ(client.last().status, static_cast<std::uint32_t>(ErrorCode::system_error));
  EXPECT_EQ(core.status().shards.at(0).clients, 0U);
  files.open_fails = false;
  try_attach(client);
  EXPECT_EQ(client.last().status, 0U);
  EXPECT_EQ(core.status().shards.at(0).clients, 1U);
}

TEST_F(DispatcherTest, PagesAreBoundedAndComeBackWithTheMapping) {
  Client first;
  Client second;
  Client third;
  attach(first);
  attach(second);
  dispatcher.handle(third.conversation,
                    make_frame<protocol::HelloRequest>(Type::hello, 1, {{1, 1}}));
  try_attach(third);
  EXPECT_EQ(third.last().status, static_cast<std::uint32_t>(ErrorCode::too_many_clients));
  dispatcher.disconnected(first.conversation);  // its mapping lives on
  try_attach(third);
  EXPECT_EQ(third.last().status, static_cast<std::uint32_t>(ErrorCode::too_many_clients));
  files.alive.clear();
  try_attach(third);
  EXPECT_EQ(third.last().status, 0U);
}

TEST_F(DispatcherTest, RefusedFramesAreCountedByCode) {
  Client client;
  dispatcher.handle(client.conversation, {});
  dispatcher.handle(client.conversation,
                    make_frame<protocol::HelloRequest>(Type::hello, 1, {{5, 6}}));
  EXPECT_EQ(counters.frames_refused[static_cast<std::size_t>(ErrorCode::protocol_error)], 1U);
  EXPECT_EQ(counters.frames_refused[static_cast<std::size_t>(ErrorCode::unsupported_version)], 1U);
  EXPECT_EQ(counters.frames_received, 2U);
  EXPECT_EQ(counters.frames_sent, 2U);
}

}  // namespace
}  // namespace hotkv::server
