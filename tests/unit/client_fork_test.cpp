#include <gtest/gtest.h>
#include <unistd.h>

#include <array>
#include <atomic>
#include <fstream>
#include <optional>
#include <thread>
#include <vector>

#include <hotkv/client.hpp>

#include "tests/support/fake_daemon.hpp"
#include "tests/support/forked_child.hpp"

namespace hotkv {
namespace {

using fake::Bytes;
using fake::FakeDaemon;
using fake::session_id;
using protocol::Type;

const SessionId kA = session_id("a");

// Everything that can be inherited, in use.
struct Holdings {
  FakeDaemon daemon;
  std::optional<Client> client = daemon.attach();
  std::optional<Context> context = *client->open(kA, Epoch{1});
  std::optional<Writer> writer = *context->append(TokenCount{20});
  std::optional<View> view;

  Holdings() {
    EXPECT_TRUE(writer->publish(TokenCount{3}).has_value());
    view = *client->get(kA, Epoch{1});
  }
};

bool is_fork_miss(const std::expected<View, CacheMiss>& view) {
  return !view && view.error().reason == MissReason::daemon_unavailable &&
         view.error().cause == ErrorCode::used_after_fork;
}

// What a child finds; the number of the first check that fails, or 0.
int use_in_child(Holdings& holdings) {
  const auto is_foreign = [](const auto& result) {
    return !result && result.error().is(ErrorCode::used_after_fork);
  };
  Client& client = *holdings.client;
  Context& context = *holdings.context;
  Writer& writer = *holdings.writer;
  const View& view = *holdings.view;
  Bytes room(10'000);
  int check = 0;
  const auto ok = [&](bool condition) { return ++check, condition; };
  if (!ok(!client.is_connected())) return check;
  if (!ok(client.recipe() == holdings.daemon.recipe() && client.chunk_tokens() == 16)) return check;
  if (!ok(is_foreign(client.open(kA, Epoch{1})))) return check;
  if (!ok(is_fork_miss(client.get(kA, Epoch{1})))) return check;
  if (!ok(is_foreign(client.resolve_as(holdings.daemon.recipe(), kA, Epoch{1}, TokenCount{3})) ||
          client.resolve_as(holdings.daemon.recipe(), kA, Epoch{1}, TokenCount{3})
              .error()
              .is(MissReason::daemon_unavailable))) {
    return check;
  }
  if (!ok(is_foreign(client.release(kA, Epoch{1})))) return check;
  const std::array appends{AppendRequest{&context, TokenCount{1}}};
  if (!ok(is_foreign(client.append(appends).front()))) return check;
  const std::array truncates{TruncateRequest{&context, TokenCount{0}}};
  if (!ok(is_foreign(client.truncate(truncates).front()))) return check;
  if (!ok(is_foreign(context.append(TokenCount{1})))) return check;
  if (!ok(is_foreign(context.reserve(TokenCount{1})))) return check;
  if (!ok(is_foreign(context.truncate(TokenCount{0})))) return check;
  if (!ok(is_foreign(context.release()))) return check;
  if (!ok(is_foreign(context.close()))) return check;
  if (!ok(context.session() == kA && context.epoch() == Epoch{1})) return check;
  if (!ok(context.length() <= TokenCount{3} && context.granted() == TokenCount{0})) return check;
  if (!ok(writer.keys(3, 0).empty() && writer.values(3, 0).empty())) return check;
  const auto written = writer.write_keys(3, TokenCount{3}, std::span(room).first(16));
  if (!ok(!written && written.error().code == ErrorCode::used_after_fork)) return check;
  const auto published = writer.publish();
  if (!ok(!published && published.error().code == ErrorCode::used_after_fork)) return check;
  if (!ok(view.length() == TokenCount{3} && view.piece_count() == 1)) return check;
  if (!ok(view.keys(3, 0).empty() && view.values(3, 0).empty())) return check;
  if (!ok(view.gather_keys(3, room) == 0)) return check;
  // Every destructor, and assignment over what is held.
  View moved_view = std::move(*holdings.view);
  *holdings.view = std::move(moved_view);
  Writer moved_writer = std::move(writer);
  writer = std::move(moved_writer);
  holdings.client.reset();
  holdings.context.reset();
  holdings.view.reset();
  holdings.writer.reset();
  return 0;
}

// FR-076: a forked child is told to attach for itself, whatever it calls.
TEST(ForkedChild, IsRefusedEverythingAndHarmsNothingOfItsParents) {
  Holdings holdings;
  testing::ForkedChild child([&] { return use_in_child(holdings); });
  EXPECT_EQ(child.exit_code(), 0) << "the number of the check that failed";
  EXPECT_EQ(holdings.daemon.pins_held(), 2u) << "the child unpinned nothing";
  EXPECT_EQ(holdings.daemon.received(Type::close), 0u);
  EXPECT_TRUE(holdings.client->is_connected());
  EXPECT_EQ(holdings.writer->publish(), TokenCount{20});
  EXPECT_TRUE(holdings.client->get(kA, Epoch{1}).has_value());
}

// Mappings of the fake daemon's pages file.
int page_mappings() {
  std::ifstream maps("/proc/self/maps");
  int found = 0;
  for (std::string line; std::getline(maps, line);) {
    if (line.find("memfd:pages") != std::string::npos) ++found;
  }
  return found;
}

TEST(ForkedChild, InheritsNeitherThePageNorTheConnection) {
  Holdings holdings;
  EXPECT_EQ(page_mappings(), 3) << "the daemon's, the touch words, the page";
  int release[2];
  ASSERT_EQ(::pipe(release), 0);
  testing::ForkedChild child([&] {
    ::close(release[1]);
    char byte = 0;
    static_cast<void>(::read(release[0], &byte, 1));  // until the parent closes its end
    return page_mappings();
  });
  ::close(release[0]);
  holdings.view.reset();
  holdings.writer.reset();
  holdings.context.reset();
  holdings.client.reset();
  holdings.daemon.wait_for_connections(0);  // seen although the child lives
  ::close(release[1]);
  EXPECT_EQ(child.exit_code(), 1) << "the daemon's own";
}

// FR-076: while the parent goes on asking, none of its bytes mix with the child's.
TEST(ForkedChild, AForkAmidTrafficOfOtherThreadsLeavesItInert) {
  Holdings holdings;
  std::atomic<bool> stop{false};
  std::vector<std::thread> threads;
  for (int t = 0; t < 3; ++t) {
    threads.emplace_back([&] {
      while (!stop) {
        static_cast<void>(holdings.client->get(kA, Epoch{1}));
        static_cast<void>(holdings.client->get(session_id("missing"), Epoch{1}));
      }
    });
  }
  for (int i = 0; i < 20; ++i) {
    testing::ForkedChild child([&] {
      const bool refused = is_fork_miss(holdings.client->get(kA, Epoch{1}));
      holdings.view.reset();
      holdings.writer.reset();
      holdings.context.reset();
      holdings.client.reset();
      return refused ? 0 : 1;
    });
    EXPECT_EQ(child.exit_code(), 0);
  }
  stop = true;
  for (std::thread& thread : threads) thread.join();
  EXPECT_TRUE(holdings.client->get(kA, Epoch{1}).has_value());
}

}  // namespace
}  // namespace hotkv
