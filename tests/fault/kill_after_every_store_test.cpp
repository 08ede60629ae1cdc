// Kills the daemon before every single store of every operation, on the real code, rebuilds from
// the files alone, and demands: the state before or after the operation, nothing leaked or owned
// twice, pinned bytes as they were. Then kills the rebuild too.

#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <functional>
#include <optional>
#include <random>

#include "tests/support/core_harness.hpp"

namespace hotkv::test {
namespace {

struct Killed {};

// The bytes of a shard's files that can hold anything: no need to copy the sparse rest.
struct Snapshot {
  std::vector<std::byte> tables, lengths, chunks, pages;
};

constexpr std::uint32_t kSessions = 5;
constexpr std::uint32_t kExtents = 16;  // one chunk each

struct Operation {
  std::string name;
  std::function<void()> run;
  std::string session;  // the one it is about
};

class KillAfterEveryStore : public ::testing::Test {
 protected:
  KillAfterEveryStore() : h(limits()) {
    shard = h.add_shard();
    for (int i = 0; i < 2; ++i) clients.push_back(std::make_unique<CoreClient>(h, shard));
    for (std::uint32_t i = 0; i < kExtents; ++i) h.files.at(shard)->provisioned.insert(i);
    static_assert(kExtents < 64);
    h.tables(shard).extent_bits()[0] = (std::uint64_t{1} << kExtents) - 1;
    h.restart();
  }

  // 16 chunks, all with memory from the start: what is fetched from the kernel is not in the files.
  static core::Limits limits() {
    auto limits = CoreHarness::small_limits();
    limits.max_bytes = kExtents * 4096;
    limits.session_cap = 4;  // fewer than kSessions, so that opening evicts
    return limits;
  }

  Snapshot save() const {
    const auto memory = h.files.at(shard)->memory();
    const auto copy = [](std::span<const std::byte> from) {
      return std::vector<std::byte>(from.begin(), from.end());
    };
    const auto layout = FileLayout::of(h.files.at(shard)->capacities, h.files.at(shard)->geometry);
    return {copy(memory.tables), copy(memory.arena.first(64 * 64)),
            copy(memory.arena.subspan(layout.chunks.value())), copy(memory.pages)};
  }
  void load(const Snapshot& from) {
    const auto memory = h.files.at(shard)->memory();
    const auto layout = FileLayout::of(h.files.at(shard)->capacities, h.files.at(shard)->geometry);
    std::ranges::copy(from.tables, memory.tables.begin());
    std::ranges::copy(from.lengths, memory.arena.begin());
    std::ranges::copy(from.chunks, memory.arena.begin() + layout.chunks.value());
    std::ranges::copy(from.pages, memory.pages.begin());
    h.restart();
  }

  struct Seen {
    std::uint64_t epoch;
    std::uint32_t length;
    friend bool operator==(const Seen&, const Seen&) = default;
  };
  using View = std::map<std::string, Seen>;
  View view() const {
    View seen;
    for (const auto& context : h.core->contexts()) {
      seen[std::string(context.session.bytes())] = {context.epoch.value(), context.length.value()};
    }
    return seen;
  }

  // What a pinned view shows, copied when it was pinned.
  struct Pinned {
    CoreClient* client;
    std::string session;
    std::uint64_t epoch;
    CoreView view;
    std::vector<std::uint32_t> versions;
  };
  void expect_pins_whole() {
    for (const Pinned& pinned : pins) {
      ASSERT_EQ(
          pinned.client->wrong_bytes(pinned.session, pinned.epoch, pinned.view, pinned.versions),
          0u);
    }
  }
  // Every live context reads back what was appended to it.
  void expect_contents(const View& now) {
    for (const auto& [name, seen] : now) {
      auto read = clients[0]->resolve(name, seen.epoch, seen.length);
      ASSERT_TRUE(read.has_value()) << name;
      EXPECT_EQ(clients[0]->wrong_bytes(name, seen.epoch, *read, versions[name]), 0u) << name;
      clients[0]->unpin(*read);
    }
  }

  std::uint32_t below(std::uint32_t n) { return static_cast<std::uint32_t>(random() % n); }

  // A step of a client that the daemon has no part in; false if none was due.
  bool step_of_client(CoreClient& client, const std::string& session, const View& now);
  // Nothing where the chosen one makes no sense now.
  std::optional<Operation> choose(CoreClient& client, const std::string& session,
                                  std::uint64_t epoch, const View& now, std::uint32_t version);
  void kill_before_store(const Operation& op, const Snapshot& files, std::uint64_t store);
  void kill_rebuild();
  void expect_before_or_after(const Operation& op, const View& before, const View& after);
  void note_contents(const View& before, const View& after, std::uint32_t version);

  std::mt19937 random{20260101};
  std::uint64_t kills = 0;
  CoreHarness h;
  core::ShardId shard;
  std::vector<std::unique_ptr<CoreClient>> clients;
  std::vector<Pinned> pins;
  // Which append wrote each token of a session's context.
  std::map<std::string, std::vector<std::uint32_t>> versions;
};

bool KillAfterEveryStore::step_of_client(CoreClient& client, const std::string& session,
                                         const View& now) {
  const auto found = now.find(session);
  const std::uint32_t what = below(10);
  if (what < 2 && found != now.end()) {
    const auto [epoch, length] = found->second;
    if (auto pinned = client.resolve(session, epoch, length)) {
      pins.push_back({&client, session, epoch, *pinned, versions[session]});
    }
    return true;
  }
  if (what != 2 || pins.empty()) return false;
  const auto let_go = pins.begin() + below(static_cast<std::uint32_t>(pins.size()));
  let_go->client->unpin(let_go->view);
  pins.erase(let_go);
  h.core->end_message(shard);
  return true;
}

std::optional<Operation> KillAfterEveryStore::choose(CoreClient& client, const std::string& session,
                                                     std::uint64_t epoch, const View& now,
                                                     std::uint32_t version) {
  const auto found = now.find(session);
  switch (below(8)) {
    case 0: return Operation{"open", [=, &client] { (void)client.open(session, epoch); }, session};
    case 1:
      return Operation{"supersede", [=, &client] { (void)client.open(session, epoch + 1); },
                       session};
    case 2:
    case 3: {
      const std::uint32_t tokens = 1 + below(40);
      const auto append = [=, &client] {
        (void)client.open(session, epoch);
        (void)client.append(session, epoch, tokens, version);
      };
      return Operation{"append", append, session};
    }
    case 4: {
      if (found == now.end()) return std::nullopt;
      const std::uint32_t to = below(found->second.length + 1);
      return Operation{"truncate", [=, &client] { (void)client.truncate(session, epoch, to); },
                       session};
    }
    case 5:
      return Operation{"release", [=, &client] { (void)client.release(session, epoch); }, session};
    case 6:
      return Operation{"close", [=, &client] { (void)client.close(session, epoch); }, session};
    default: {
      const auto take_over = [=, this, &client] {
        client.hang_up();
        (void)clients[0]->open(session, epoch);
        (void)clients[1]->open(session, epoch);
      };
      return Operation{"hang up and take over", take_over, session};
    }
  }
}

void KillAfterEveryStore::kill_before_store(const Operation& op, const Snapshot& files,
                                            std::uint64_t store) {
  load(files);
  std::uint64_t left = store;
  h.core->set_store_probe([&] {
    if (left-- == 0) throw Killed{};
  });
  EXPECT_THROW(op.run(), Killed);
  ++kills;
}

void KillAfterEveryStore::kill_rebuild() {
  std::uint64_t left = below(40);
  h.core = std::make_unique<core::Core>(
      h.limits, [this] { return h.now_ms; }, h.liveness);
  h.core->set_store_probe([&] {
    if (left-- == 0) throw Killed{};
  });
  try {
    (void)h.core->adopt_shard(h.files.at(shard)->memory(), default_certified_architectures());
  } catch (const Killed&) {
    ++kills;
  }
}

void KillAfterEveryStore::expect_before_or_after(const Operation& op, const View& before,
                                                 const View& after) {
  ASSERT_EQ(h.core->verify(), std::nullopt);
  const View rebuilt = view();
  for (const auto& [name, seen] : rebuilt) {
    const auto was = before.find(name);
    const auto is = after.find(name);
    const bool as_before = was != before.end() && was->second == seen;
    const bool as_after = is != after.end() && is->second == seen;
    // An append that opens first passes through a state of its own: made, and still empty.
    const bool is_new = was == before.end() || was->second.epoch != seen.epoch;
    const bool opened = is_new && name == op.session && seen.length == 0 && is != after.end() &&
                        is->second.epoch == seen.epoch;
    ASSERT_TRUE(as_before || as_after || opened)
        << name << " epoch " << seen.epoch << " length " << seen.length;
  }
  for (const auto& [name, seen] : before) {
    const auto is = after.find(name);
    if (rebuilt.contains(name) || is == after.end()) continue;
    // Missing though it is there before and after: only between an old epoch and a new one.
    ASSERT_TRUE(name == op.session && is->second.epoch > seen.epoch) << "lost " << name;
  }
  expect_pins_whole();
}

void KillAfterEveryStore::note_contents(const View& before, const View& after,
                                        std::uint32_t version) {
  for (auto& [name, content] : versions) {
    const auto was = before.find(name);
    const auto is = after.find(name);
    const bool same =
        was != before.end() && is != after.end() && was->second.epoch == is->second.epoch;
    if (!same) content.clear();
  }
  for (const auto& [name, seen] : after) versions[name].resize(seen.length, version);
}

TEST_F(KillAfterEveryStore, LeavesTheStateBeforeOrAfterAndPinnedBytesWhole) {
  std::uint64_t operations = 0;
  std::map<std::string, std::uint64_t> epochs;
  for (std::uint32_t step = 0; step < 2000; ++step) {
    h.now_ms += 20;
    CoreClient& client = *clients[below(2)];
    const std::string session = "s" + std::to_string(below(kSessions));
    const View now = view();
    if (step_of_client(client, session, now)) continue;
    const auto found = now.find(session);
    const std::uint64_t epoch = found == now.end() ? epochs[session] : found->second.epoch;
    const auto op = choose(client, session, epoch, now, step + 1);
    if (!op) continue;
    SCOPED_TRACE(op->name + " at step " + std::to_string(step));

    const Snapshot before_files = save();
    load(before_files);  // the private state a rebuilt core has
    const View before = view();
    std::uint64_t stores = 0;
    h.core->set_store_probe([&] { ++stores; });
    op->run();
    h.core->set_store_probe({});
    const View after = view();
    const Snapshot after_files = save();
    ASSERT_EQ(h.core->verify(), std::nullopt);
    ++operations;

    for (std::uint64_t store = 0; store < stores && !HasFailure(); ++store) {
      SCOPED_TRACE("killed before store " + std::to_string(store));
      kill_before_store(*op, before_files, store);
      if (store % 3 == 0) kill_rebuild();
      h.restart();
      expect_before_or_after(*op, before, after);
    }
    ASSERT_FALSE(HasFailure());
    load(after_files);
    expect_pins_whole();
    note_contents(before, after, step + 1);
    expect_contents(after);
    if (const auto is = after.find(session); is != after.end()) epochs[session] = is->second.epoch;
  }
  std::printf("operations %llu, kills %llu\n", static_cast<unsigned long long>(operations),
              static_cast<unsigned long long>(kills));
  EXPECT_GT(kills, 15000u);
}

}  // namespace
}  // namespace hotkv::test
