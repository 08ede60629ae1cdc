// The daemon dies and another one comes with other memory.

#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cstring>
#include <fstream>
#include <memory>
#include <optional>
#include <thread>
#include <vector>

#include <hotkv/client.hpp>

#include "tests/support/eventually.hpp"
#include "tests/support/fake_daemon.hpp"
#include "tests/support/fake_rows.hpp"

namespace hotkv {
namespace {

using fake::append_tokens;
using fake::Bytes;
using fake::expect_tokens;
using fake::FakeDaemon;
using fake::kA;
using fake::kB;
using fake::rows_of;
using fake::session_id;
using fake::write_all;
using protocol::Type;
using std::chrono::milliseconds;
using testing::eventually;

constexpr milliseconds kLong = std::chrono::minutes(1);  // reached only by a test that fails

// Waits until the client has another memory than before.
void wait_replaced(const Client& client, std::uint64_t boot_token) {
  ASSERT_TRUE(eventually([&] { return client.boot_token() != boot_token; }));
  ASSERT_TRUE(client.wait_connected(kLong));
}

// Mappings of arenas in this process; one is the fake daemon's own for each that is alive.
std::size_t mapped_arenas() {
  std::ifstream maps("/proc/self/maps");
  std::size_t found = 0;
  for (std::string line; std::getline(maps, line);) {
    if (line.find("memfd:arena") != std::string::npos) ++found;
  }
  return found;
}

// A client that held all there is to hold when its daemon was replaced.
struct Replaced {
  FakeDaemon first;
  Client client = first.attach();
  Context context = *client.open(kA, Epoch{1});
  std::optional<View> view;
  std::optional<Writer> writer;
  std::optional<FakeDaemon> second;

  explicit Replaced(const fake::FakeDaemonOptions& options = {}) {
    append_tokens(context, 20);
    view = *client.get(kA, Epoch{1});
    writer = *context.append(TokenCount{4});
    const std::uint64_t boot_token = client.boot_token();
    first.die();
    second.emplace(options, &first);
    wait_replaced(client, boot_token);
  }
};

// FR-053: with a new arena the client goes on by itself, and what it held of the old one says so on
// its first use.
TEST(ColdRestart, TheNextCallWorksOnTheNewMemoryAndOldContextsAreLost) {
  Replaced at;
  EXPECT_EQ(at.client.boot_token(), at.second->header().boot_token);
  EXPECT_EQ(at.client.get(kA, Epoch{1}).error().reason, MissReason::unknown_session);

  const auto append = at.context.append(TokenCount{1});
  ASSERT_FALSE(append.has_value());
  EXPECT_TRUE(append.error().is(MissReason::lost_in_restart)) << append.error().message();
  EXPECT_EQ(append.error().miss().known_length, TokenCount{20});
  EXPECT_TRUE(at.context.reserve(TokenCount{1}).error().is(MissReason::lost_in_restart));
  EXPECT_TRUE(at.context.truncate(TokenCount{20}).error().is(MissReason::lost_in_restart));
  EXPECT_TRUE(at.context.release().error().is(MissReason::lost_in_restart));
  EXPECT_EQ(at.context.granted(), TokenCount{0});
  EXPECT_EQ(at.writer->publish().error().code, ErrorCode::lease_lost);
  EXPECT_EQ(at.context.length(), TokenCount{20});
  EXPECT_TRUE(at.context.close().error().is(MissReason::lost_in_restart));

  Context again = *at.client.open(kA, Epoch{1});
  append_tokens(again, 33);
  expect_tokens(at.client, kA, 33);
  EXPECT_EQ(at.view->length(), TokenCount{20});
  Bytes keys(20 * 16);
  at.view->gather_keys(3, keys);
  EXPECT_EQ(keys, rows_of(0, 20, 3, true)) << "a held view stays as it was";
  EXPECT_EQ(at.second->received(Type::append), 1u) << "nothing of the old context was asked there";
  EXPECT_EQ(at.second->received(Type::close), 0u);
}

TEST(ColdRestart, ABatchAnswersForContextsOfBothMemories) {
  Replaced at;
  Context fresh = *at.client.open(kB, Epoch{1});
  Context more = *at.client.open(session_id("c"), Epoch{1});
  const std::array requests{
      AppendRequest{&at.context, TokenCount{1}}, AppendRequest{&fresh, TokenCount{5}},
      AppendRequest{&at.context, TokenCount{1}}, AppendRequest{&more, TokenCount{6}}};
  auto writers = at.client.append(requests);
  ASSERT_EQ(writers.size(), 4u);
  EXPECT_TRUE(writers[0].error().is(MissReason::lost_in_restart));
  EXPECT_EQ(writers[1].value().size(), TokenCount{5});
  EXPECT_TRUE(writers[2].error().is(MissReason::lost_in_restart));
  EXPECT_EQ(writers[3].value().size(), TokenCount{6});
  EXPECT_EQ(at.second->received(Type::append), 1u) << "one message";
  const std::array truncates{TruncateRequest{&fresh, TokenCount{0}},
                             TruncateRequest{&at.context, TokenCount{0}}};
  const auto truncated = at.client.truncate(truncates);
  EXPECT_TRUE(truncated[0].has_value());
  EXPECT_TRUE(truncated[1].error().is(MissReason::lost_in_restart));
}

TEST(ColdRestart, TheOldMemoryIsUnmappedWithTheLastThatHoldsIt) {
  const std::size_t before = mapped_arenas();
  Replaced at;
  EXPECT_EQ(mapped_arenas(), before + 4) << "two daemons' and the client's two";
  at.view.reset();
  at.writer.reset();
  EXPECT_EQ(mapped_arenas(), before + 4) << "the context holds it";
  { const Context gone = std::move(at.context); }
  EXPECT_EQ(mapped_arenas(), before + 3);
}

TEST(ColdRestart, WhereNothingIsHeldTheOldMemoryIsUnmappedAtOnce) {
  FakeDaemon first;
  const Client client = first.attach();
  const std::uint64_t boot_token = client.boot_token();
  const std::size_t before = mapped_arenas();
  first.die();
  const FakeDaemon second({}, &first);
  wait_replaced(client, boot_token);
  // The second daemon's own. The client's thread goes on with the new memory first.
  EXPECT_TRUE(eventually([&] { return mapped_arenas() == before + 1; })) << mapped_arenas();
}

// FR-055: same path, same sizes, same session, same place in the arena, other bytes: what is read
// is what is there now.
TEST(ColdRestart, OneSessionInOnePlaceOfTwoMemoriesIsReadFromTheNewOne) {
  FakeDaemon first;
  first.put(kA, Epoch{1}, TokenCount{16});
  const Client client = first.attach();
  const Client handle = first.attach();
  for (const Client* each : {&client, &handle}) expect_tokens(*each, kA, 16);
  const std::uint64_t boot_token = client.boot_token();
  first.die();
  FakeDaemon second({.is_deaf_at_first = true}, &first);
  second.put(kA, Epoch{1}, TokenCount{16});
  ASSERT_EQ(second.tip_of(kA), first.tip_of(kA));
  std::memset(second.chunk(second.tip_of(kA)), 0x5a, second.geometry().chunk_bytes);
  second.come_back();
  for (const Client* each : {&client, &handle}) {
    wait_replaced(*each, boot_token);
    const auto view = each->resolve(kA, Epoch{1}, TokenCount{16});
    ASSERT_TRUE(view.has_value());
    EXPECT_TRUE(std::ranges::all_of(view->keys(3, 0), [](auto b) { return b == std::byte{0x5a}; }));
  }
}

TEST(ColdRestart, AnotherGeometryIsTakenOver) {
  const Replaced at({.chunk_tokens = 32});
  EXPECT_EQ(at.client.chunk_tokens(), 32u);
  EXPECT_EQ(at.view->piece_tokens(0), TokenCount{16}) << "the old view's pieces are as they were";
}

TEST(ColdRestart, WhatOutlivesTheClientIsLost) {
  FakeDaemon first;
  std::optional<Client> client = first.attach();
  Context context = *client->open(kA, Epoch{1});
  client.reset();
  first.die();
  const FakeDaemon second({}, &first);
  ASSERT_TRUE(eventually(
      [&] { return context.append(TokenCount{1}).error().is(MissReason::lost_in_restart); }));
  EXPECT_EQ(second.received(Type::attach), 1u) << "nobody would use another attachment";
}

TEST(ColdRestart, ItIsTriedUntilTheNewMemoryCanBeMapped) {
  FakeDaemon first;
  Client client = first.attach();
  Context context = *client.open(kA, Epoch{1});
  const std::uint64_t boot_token = client.boot_token();
  first.die();
  FakeDaemon second({.is_deaf_at_first = true}, &first);
  second.header().layout_version += 1;
  second.come_back();
  second.wait_for(Type::attach, 2);
  EXPECT_FALSE(client.is_connected());
  EXPECT_TRUE(context.append(TokenCount{1}).error().is(MissReason::lost_in_restart));
  second.header().layout_version -= 1;
  wait_replaced(client, boot_token);
  EXPECT_TRUE(client.open(kA, Epoch{1}).has_value());
}

// One daemon after the other at one path, each with a memory full of its own number.
class Successors {
 public:
  Successors() { start(); }

  void start() {
    if (!daemons_.empty()) daemons_.back()->die();
    const FakeDaemon* first = daemons_.empty() ? nullptr : daemons_.front().get();
    fake::FakeDaemonOptions options;
    options.arena_bytes = std::uint64_t{2} << 20;
    options.is_deaf_at_first = true;
    daemons_.push_back(std::make_unique<FakeDaemon>(options, first));
    FakeDaemon& daemon = *daemons_.back();
    daemon.put(kA, Epoch{1}, TokenCount{16});
    std::memset(daemon.chunk(daemon.tip_of(kA)), static_cast<int>(daemons_.size()),
                daemon.geometry().chunk_bytes);
    daemon.come_back();
  }
  ~Successors() {  // the first one has the folder
    while (!daemons_.empty()) daemons_.pop_back();
  }
  [[nodiscard]] const FakeDaemon& now() const { return *daemons_.back(); }

 private:
  std::vector<std::unique_ptr<FakeDaemon>> daemons_;
};

// FR-055: no thread ever gets bytes of an older memory behind those of a newer one.
TEST(ColdRestart, ThreadsThatResolveAllTheTimeSeeOneMemoryAfterTheOther) {
  Successors daemons;
  Client client = daemons.now().attach();
  std::atomic<bool> stop{false};
  std::atomic<std::size_t> hits{0};
  std::atomic<int> wrong{0};
  std::vector<std::thread> threads;
  for (int t = 0; t < 3; ++t) {
    threads.emplace_back([&] {
      std::byte newest{0};
      while (!stop) {
        const auto view = client.resolve(kA, Epoch{1}, TokenCount{16});
        if (!view) continue;
        const auto keys = view->keys(4, 0);
        if (keys[0] < newest || std::ranges::any_of(keys, [&](auto b) { return b != keys[0]; })) {
          ++wrong;
        }
        newest = keys[0];
        ++hits;
      }
    });
  }
  for (int restarts = 0; restarts < 8; ++restarts) {
    const std::size_t hits_before = hits;
    while (hits < hits_before + 100) std::this_thread::yield();
    const std::uint64_t boot_token = client.boot_token();
    daemons.start();
    wait_replaced(client, boot_token);
  }
  stop = true;
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(wrong, 0);
}

TEST(ColdRestart, AClientMayEndAtAnyMomentOfIt) {
  Successors daemons;
  for (int i = 0; i < 20; ++i) {
    auto client = std::make_unique<Client>(daemons.now().attach());
    std::optional<View> view;
    if (i % 2 == 0) view = *client->get(kA, Epoch{1});
    daemons.start();
    std::this_thread::sleep_for(std::chrono::microseconds(700 * i));
    client.reset();
    if (view) {
      EXPECT_EQ(view->length(), TokenCount{16});
    }
  }
}

}  // namespace
}  // namespace hotkv
