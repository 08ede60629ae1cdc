// Kills the daemon before every single store of every operation, on the real code, rebuilds from the
// files alone, and demands: the state before or after the operation, nothing leaked or owned twice,
// pinned bytes as they were. Then kills the rebuild too.

#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <functional>
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

class KillAfterEveryStore : public ::testing::Test {
 protected:
  KillAfterEveryStore() : h(limits()) {
    shard = h.add_shard();
    for (int i = 0; i < 2; ++i) clients.push_back(std::make_unique<CoreClient>(h, shard));
    for (std::uint32_t i = 0; i < kExtents; ++i) h.files.at(shard)->provisioned.insert(i);
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
    const auto layout =
        FileLayout::of(h.files.at(shard)->capacities, h.files.at(shard)->geometry);
    return {copy(memory.tables), copy(memory.arena.first(64 * 64)),
            copy(memory.arena.subspan(layout.chunks.value())), copy(memory.pages)};
  }
  void load(const Snapshot& from) {
    const auto memory = h.files.at(shard)->memory();
    const auto layout =
        FileLayout::of(h.files.at(shard)->capacities, h.files.at(shard)->geometry);
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
      ASSERT_EQ(pinned.client->wrong_bytes(pinned.session, pinned.epoch, pinned.view,
                                           pinned.versions),
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

  CoreHarness h;
  core::ShardId shard;
  std::vector<std::unique_ptr<CoreClient>> clients;
  std::vector<Pinned> pins;
  // Which append wrote each token of a session's context.
  std::map<std::string, std::vector<std::uint32_t>> versions;
};

struct Operation {
  std::string name;
  std::function<void()> run;
  std::string session;  // the one it is about
};

TEST_F(KillAfterEveryStore, LeavesTheStateBeforeOrAfterAndPinnedBytesWhole) {
  const std::uint32_t seed = 20260101;
  RecordProperty("seed", static_cast<int>(seed));
  std::mt19937 random(seed);
  const auto below = [&](std::uint32_t n) { return static_cast<std::uint32_t>(random() % n); };
  std::uint64_t kills = 0;
  std::uint64_t operations = 0;
  std::map<std::string, std::uint64_t> epochs;

  for (int step = 0; step < 2000; ++step) {
    h.now_ms += 20;
    CoreClient& client = *clients[below(2)];
    const std::string session = "s" + std::to_string(below(kSessions));
    const View now = view();
    const auto found = now.find(session);
    const std::uint64_t epoch = found == now.end() ? epochs[session] : found->second.epoch;

    // Steps of clients: no store of the daemon's, nothing to kill.
    if (const auto what = below(10); what < 2 && found != now.end()) {
      if (auto pinned = client.resolve(session, epoch, found->second.length)) {
        pins.push_back({&client, session, epoch, *pinned, versions[session]});
      }
      continue;
    } else if (what == 2 && !pins.empty()) {
      const auto victim = pins.begin() + below(static_cast<std::uint32_t>(pins.size()));
      victim->client->unpin(victim->view);
      pins.erase(victim);
      h.core->end_message(shard);
      continue;
    }

    Operation op;
    switch (below(8)) {
      case 0:
        op = {"open", [&] { (void)client.open(session, epoch); }, session};
        break;
      case 1:
        op = {"supersede", [&] { (void)client.open(session, epoch + 1); }, session};
        break;
      case 2:
      case 3: {
        const std::uint32_t tokens = 1 + below(40);
        const auto version = static_cast<std::uint32_t>(step) + 1;
        op = {"append", [&client, session, epoch, tokens, version] {
                (void)client.open(session, epoch);
                (void)client.append(session, epoch, tokens, version);
              }, session};
        break;
      }
      case 4: {
        if (found == now.end()) continue;
        const std::uint32_t to = below(found->second.length + 1);
        op = {"truncate", [&client, session, epoch, to] {
                (void)client.truncate(session, epoch, to);
              }, session};
        break;
      }
      case 5:
        op = {"release", [&] { (void)client.release(session, epoch); }, session};
        break;
      case 6:
        op = {"close", [&] { (void)client.close(session, epoch); }, session};
        break;
      default:
        op = {"hang up and take over", [&] {
                client.hang_up();
                (void)clients[0]->open(session, epoch);
                (void)clients[1]->open(session, epoch);
              }, session};
        break;
    }

    const Snapshot before_files = save();
    load(before_files);  // the private state a rebuilt core has
    const View before = view();
    std::uint64_t stores = 0;
    h.core->set_store_probe([&] { ++stores; });
    op.run();
    h.core->set_store_probe({});
    const View after = view();
    const Snapshot after_files = save();
    ASSERT_EQ(h.core->verify(), std::nullopt) << op.name << " step " << step;
    ++operations;

    for (std::uint64_t k = 0; k < stores; ++k) {
      load(before_files);
      std::uint64_t left = k;
      h.core->set_store_probe([&] {
        if (left-- == 0) throw Killed{};
      });
      EXPECT_THROW(op.run(), Killed);
      ++kills;
      if (k % 3 == 0) {  // and the rebuild is killed as well, at some store
        const Snapshot killed_files = save();
        std::uint64_t rebuild_left = below(40);
        h.core = std::make_unique<core::Core>(h.limits, [this] { return h.now_ms; }, h.liveness);
        h.core->set_store_probe([&] {
          if (rebuild_left-- == 0) throw Killed{};
        });
        try {
          (void)h.core->adopt_shard(h.files.at(shard)->memory(), default_certified_architectures(),
                                    [](ExtentIndex extent) { return extent.value() < kExtents; });
        } catch (const Killed&) {
          ++kills;
        }
      }
      h.restart();
      ASSERT_EQ(h.core->verify(), std::nullopt)
          << op.name << " step " << step << " killed before store " << k;
      const View rebuilt = view();
      // Every session but the operation's own: as before or as after (evicted for it).
      for (const auto& [name, seen] : rebuilt) {
        const auto was = before.find(name);
        const auto is = after.find(name);
        const bool as_before = was != before.end() && was->second == seen;
        const bool as_after = is != after.end() && is->second == seen;
        // An append that opens first passes through a state of its own: made, and still empty.
        const bool is_new = was == before.end() || was->second.epoch != seen.epoch;
        const bool opened = is_new && name == op.session && seen.length == 0 &&
                            is != after.end() && is->second.epoch == seen.epoch;
        ASSERT_TRUE(as_before || as_after || opened)
            << op.name << " step " << step << " store " << k << ": " << name << " epoch "
            << seen.epoch << " length " << seen.length;
      }
      for (const auto& [name, seen] : before) {
        const auto is = after.find(name);
        if (rebuilt.contains(name) || is == after.end()) continue;
        // Missing though it is there before and after: only between an old epoch and a new one.
        ASSERT_TRUE(name == op.session && is->second.epoch > seen.epoch)
            << op.name << " step " << step << " store " << k << ": lost " << name;
      }
      expect_pins_whole();
    }
    load(after_files);
    expect_pins_whole();
    for (auto& [name, content] : versions) {
      const auto was = before.find(name);
      const auto is = after.find(name);
      const bool same = was != before.end() && is != after.end() &&
                        was->second.epoch == is->second.epoch;
      if (!same) content.clear();
    }
    for (const auto& [name, seen] : after) {
      versions[name].resize(seen.length, static_cast<std::uint32_t>(step) + 1);
    }
    expect_contents(after);
    if (const auto is = after.find(session); is != after.end()) epochs[session] = is->second.epoch;
  }
  RecordProperty("kills", static_cast<int>(kills));
  std::printf("operations %llu, kills %llu\n", static_cast<unsigned long long>(operations),
              static_cast<unsigned long long>(kills));
  EXPECT_GT(kills, 15000u);
}

}  // namespace
}  // namespace hotkv::test
