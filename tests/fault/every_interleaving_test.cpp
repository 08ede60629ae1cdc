// A reader's three steps and a writer's publish, put before every store of every daemon operation,
// on the real code of both sides. The daemon is one thread and its stores are the only moments at
// which anybody can tell that time has passed, so these are all interleavings of one client with
// it.

#include <gtest/gtest.h>

#include <algorithm>
#include <functional>
#include <optional>
#include <string>

#include "shared/session_hash.hpp"
#include "tests/support/core_harness.hpp"

namespace hotkv::test {
namespace {

using Versions = std::vector<std::uint32_t>;

Versions written(std::uint32_t count, std::uint32_t version, Versions before = {}) {
  before.resize(before.size() + count, version);
  return before;
}

// Session "a", epoch 1, holds 20 tokens of version 1 in two chunks of 16; 8 chunks are all there
// are.
struct World {
  World()
      : h(limits()),
        holder(h, h.add_shard()),
        other(h, holder.client.shard),
        reader(h, holder.client.shard, Access::read) {
    (void)holder.open("a", 1);
    (void)holder.append("a", 1, 20, 1);
    slot = h.core
               ->explain(holder.client, id("a"), Epoch{1}, small_recipe().fingerprint(),
                         TokenCount{20}, LengthMatch::exact)
               ->slot;
  }
  static core::Limits limits() {
    auto limits = CoreHarness::small_limits();
    limits.max_bytes = 8 * 4096;
    limits.session_cap = 4;
    limits.tombstones = 4;
    return limits;
  }
  // Another session takes whatever memory it can get and writes over all of it.
  void reuse_memory() {
    (void)other.open("reuse", 1);
    for (std::uint32_t n = 0; n < 8; ++n) {
      if (!other.append("reuse", 1, 16, 9)) break;
    }
  }

  CoreHarness h;
  CoreClient holder, other, reader;
  SlotIndex slot;
};

struct Operation {
  std::string name;
  std::function<void(World&)> run;
  std::vector<Versions> may_read;  // what a reader of (a, 1) may see, each whole
  // Where the operation keeps what was published: the epoch under which it is found afterwards.
  bool keeps_published = false;
};

const Versions kTwenty = written(20, 1);

std::vector<Operation> operations() {
  return {
      {"truncate",
       [](World& w) { (void)w.holder.truncate("a", 1, 10); },
       {kTwenty, written(10, 1)}},
      {"truncate, then append to the same length",
       [](World& w) {
         (void)w.holder.truncate("a", 1, 10);
         (void)w.holder.append("a", 1, 10, 2);
       },
       {kTwenty, written(10, 1), written(10, 2, written(10, 1))}},
      {"two truncates in a row",
       [](World& w) {
         (void)w.holder.truncate("a", 1, 17);
         (void)w.holder.truncate("a", 1, 3);
         (void)w.holder.append("a", 1, 2, 2);
       },
       {kTwenty, written(17, 1), written(3, 1), written(2, 2, written(3, 1))}},
      {"release", [](World& w) { (void)w.holder.release("a", 1); }, {kTwenty}},
      {"release, then the slot is another session's",
       [](World& w) {
         (void)w.holder.release("a", 1);
         (void)w.other.open("b", 1);
         (void)w.other.append("b", 1, 20, 5);
       },
       {kTwenty}},
      {"release, then the same session again",
       [](World& w) {
         (void)w.holder.release("a", 1);
         (void)w.other.open("a", 1);
         (void)w.other.append("a", 1, 20, 2);
       },
       {kTwenty, {}, written(20, 2)}},
      {"supersede",
       [](World& w) {
         (void)w.other.open("a", 2);
         (void)w.other.append("a", 2, 20, 2);
       },
       {kTwenty}},
      {"eviction for the budget", [](World& w) { w.reuse_memory(); }, {kTwenty}},
      {"take-over from a holder that hung up and lives",
       [](World& w) {
         w.holder.hang_up();
         (void)w.other.open("a", 1);
         (void)w.other.append("a", 1, 4, 2);
       },
       {kTwenty, written(4, 2, kTwenty)},
       true},
      {"close, then another holder",
       [](World& w) {
         (void)w.holder.close("a", 1);
         (void)w.other.open("a", 1);
         (void)w.other.append("a", 1, 4, 2);
       },
       {kTwenty, written(4, 2, kTwenty)},
       true},
  };
}

std::uint64_t count_stores(const Operation& operation) {
  World world;
  std::uint64_t stores = 0;
  world.h.core->set_store_probe([&] { ++stores; });
  operation.run(world);
  return stores;
}

// The read path by hand, one step a call: what resolve does between its fault points.
class SteppedReader {
 public:
  explicit SteppedReader(World& world)
      : world_(world), tables_(world.h.tables(world.reader.client.shard)) {}

  void load_head_and_identity() {
    const SlotRecord& record = tables_.slot(world_.slot);
    head_ = load_head(record.head);
    found_ = !head_.tip.is_free() && slot_has_session(record, id("a")) &&
             record.epoch.load(std::memory_order_acquire) == 1;
  }
  void claim() {
    if (!found_) return;
    ClientPage& page = tables_.untrusted_page(world_.reader.client.page);
    page.high_water.store(1);
    ASSERT_TRUE(claim_pin(page.pins[0], {world_.slot, head_.generation}));
  }
  void confirm() {
    if (!found_) return;
    const auto snapshot = confirm_pin(tables_.slot(world_.slot).head,
                                      tables_.length_word(world_.slot), head_.generation);
    if (!snapshot) {
      unpin(tables_.untrusted_page(world_.reader.client.page).pins[0]);
      return;
    }
    view_ = CoreView{world_.reader.client.shard, 0, world_.slot, head_.generation,
                     snapshot->length,           {}};
    for (Tip tip = snapshot->tip; tip.is_chunk();) {
      view_->chunks.push_back(tip.chunk());
      const auto word = ChunkWord::from_bits(tables_.chunk_word(tip.chunk()).load());
      tip = word.previous ? Tip::at(*word.previous) : Tip::empty();
    }
    std::ranges::reverse(view_->chunks);
  }
  // Which of `allowed` the view shows; -1: none of them, whole. Only if there is a view.
  [[nodiscard]] int shown(const std::vector<Versions>& allowed) const {
    for (std::size_t i = 0; i < allowed.size(); ++i) {
      if (view_->length.value() == allowed[i].size() &&
          world_.reader.wrong_bytes("a", 1, *view_, allowed[i]) == 0) {
        return static_cast<int>(i);
      }
    }
    return -1;
  }
  [[nodiscard]] bool has_view() const { return view_.has_value(); }

 private:
  World& world_;
  core::ShardTables tables_;
  HeadWord head_;
  bool found_ = false;
  std::optional<CoreView> view_;
};

// Runs the operation with the reader's steps before stores number i, j and k.
void read_across(const Operation& operation, std::uint64_t i, std::uint64_t j, std::uint64_t k) {
  SCOPED_TRACE(operation.name + " steps at stores " + std::to_string(i) + ", " + std::to_string(j) +
               ", " + std::to_string(k));
  World world;
  SteppedReader reader(world);
  int first_shown = -2;
  std::uint64_t store = 0;
  const auto step = [&] {
    if (store == i) reader.load_head_and_identity();
    if (store == j) reader.claim();
    if (store == k) {
      reader.confirm();
      if (reader.has_view()) {
        first_shown = reader.shown(operation.may_read);
        EXPECT_NE(first_shown, -1) << "torn, stale or foreign bytes";
      }
    }
    ++store;
  };
  world.h.core->set_store_probe(step);
  operation.run(world);
  world.h.core->set_store_probe({});
  while (store <= k) step();  // the steps after the last store
  world.reuse_memory();
  if (reader.has_view()) {
    EXPECT_EQ(reader.shown(operation.may_read), first_shown) << "pinned bytes changed";
  }
  EXPECT_EQ(world.h.core->verify(), std::nullopt);
}

class EveryInterleaving : public ::testing::TestWithParam<std::size_t> {
 protected:
  const Operation operation = operations()[GetParam()];
};

TEST_P(EveryInterleaving, OfAReader) {
  // All three steps within a window of stores, and a claim long before its check.
  constexpr std::uint64_t kWindow = 6;
  const std::uint64_t stores = count_stores(operation);
  ASSERT_GT(stores, 4u);
  for (std::uint64_t i = 0; i <= stores && !HasFailure(); ++i) {
    for (std::uint64_t j = i; j <= std::min(stores, i + kWindow); ++j) {
      for (std::uint64_t k = j; k <= std::min(stores, j + kWindow); ++k) {
        read_across(operation, i, j, k);
      }
    }
    for (std::uint64_t k = i; k <= stores; k += 3) {
      read_across(operation, i, i, k);
      read_across(operation, i, k, k);
    }
  }
}

TEST_P(EveryInterleaving, OfAPublish) {
  const std::uint64_t stores = count_stores(operation);
  for (std::uint64_t i = 0; i <= stores && !HasFailure(); ++i) {
    SCOPED_TRACE(operation.name + " publish before store " + std::to_string(i));
    World world;
    const auto granted = world.holder.grant("a", 1, 24);
    ASSERT_TRUE(granted.has_value());
    const auto writer = world.holder.pin_for_writing(*granted);
    ASSERT_TRUE(writer.has_value());
    std::optional<bool> acknowledged;
    std::uint64_t store = 0;
    const auto step = [&] {
      if (store++ != i) return;
      world.holder.write("a", 1, *writer, 20, 24, 7);  // plain stores nobody can fence off
      acknowledged = world.holder.publish(*writer, 20, 24);
    };
    world.h.core->set_store_probe(step);
    operation.run(world);
    world.h.core->set_store_probe({});
    if (!acknowledged) step();
    world.holder.write("a", 1, *writer, 20, 24, 8);  // and once more, much too late
    world.reuse_memory();
    EXPECT_EQ(world.h.core->verify(), std::nullopt);
    // Never acknowledged and lost: whoever goes on from what is published goes on from these, too.
    if (operation.keeps_published && *acknowledged && store > i + 1) {
      const auto now =
          world.h.core->explain(world.other.client, id("a"), Epoch{1}, small_recipe().fingerprint(),
                                TokenCount{0}, LengthMatch::any);
      if (now) {
        EXPECT_GE(now->length, TokenCount{24});
      }
    }
    // Everybody else's bytes are their own, whatever the late writer stored.
    for (const auto& context : world.h.core->contexts()) {
      if (context.session != id("reuse")) continue;
      auto view = world.other.resolve("reuse", 1, context.length.value());
      ASSERT_TRUE(view.has_value());
      EXPECT_EQ(world.other.wrong_bytes("reuse", 1, *view, Versions(context.length.value(), 9)),
                0u);
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Operations, EveryInterleaving,
                         ::testing::Range<std::size_t>(0, operations().size()),
                         [](const auto& test) {
                           std::string name = operations()[test.param].name;
                           std::ranges::replace_if(
                               name, [](char c) { return std::isalnum(c) == 0; }, '_');
                           return name;
                         });

}  // namespace
}  // namespace hotkv::test
