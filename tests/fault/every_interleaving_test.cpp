// A reader's and a writer's steps, put before every store of every daemon operation, on the real
// code of both sides: PinWords, confirm_pin and publish, Core and all below it. A client's step is
// one access to a shared word, a plain store to a chunk, or such of which nobody can tell the
// order. The daemon is one thread; its stores, and the moment between an operation and the sweep
// after it, are when others can tell that time has passed.
//
// It can fail. Each of these alone makes it fail:
//
//   the claim after confirm_pin
//   confirm_pin: without the head's or the length's generation, or with the head before the length
//   Shard::end_generation: the length loaded and stored in two steps instead of exchanged
//   Shard::end_generation: without keep(); Shard::needs_tail_copy: return false
//   Shard::sweep: kept heads let go without a look at the pins

#include <gtest/gtest.h>

#include <algorithm>
#include <functional>
#include <optional>
#include <semaphore>
#include <set>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "client/library/pin_words.hpp"
#include "shared/fault_point.hpp"
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
  std::function<void()> moment = [] {};  // others can come between, though nothing is stored
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
      {"truncate, and the sweep later",
       [](World& w) {
         const auto at = w.holder.grant("a", 1, 20);
         (void)w.h.core->truncate(w.holder.client, id("a"), Epoch{1}, at->generation,
                                  TokenCount{20}, TokenCount{10});
         w.moment();
         w.h.core->end_message(w.holder.client.shard);
         w.moment();
       },
       {kTwenty, written(10, 1)}},
      {"release, and the sweep later",
       [](World& w) {
         (void)w.h.core->release(w.holder.client, id("a"), Epoch{1}, Generation{0}, SlotIndex{0});
         w.moment();
         w.h.core->end_message(w.holder.client.shard);
         w.moment();
       },
       {kTwenty}},
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

// Runs the operation with `moment` before each of its stores. How many moments there were.
std::uint64_t run_with(World& world, const Operation& operation,
                       const std::function<void(std::uint64_t)>& moment) {
  std::uint64_t moments = 0;
  world.moment = [&] { moment(moments++); };
  world.h.core->set_store_probe(world.moment);
  operation.run(world);
  world.h.core->set_store_probe({});
  world.moment = [] {};
  return moments;
}

std::uint64_t count_moments(const Operation& operation) {
  World world;
  return run_with(world, operation, [](std::uint64_t) {});
}

// A client on a thread of its own that takes one step at a time, when it is told to: one of them
// runs, the daemon or the client.
class SteppedClient {
 public:
  explicit SteppedClient(std::function<void()> body)
      : thread_([this, body = std::move(body)] {
          current = this;
          go_.acquire();
          body();
          done_ = true;
          stopped_.release();
        }) {
    fault_handler = [](std::string_view point) {
      if (current != nullptr && point == "confirm-pin.between-length-and-head") end_step();
    };
  }
  SteppedClient(const SteppedClient&) = delete;
  SteppedClient& operator=(const SteppedClient&) = delete;
  ~SteppedClient() {
    while (!done_) step();
    thread_.join();
    fault_handler = nullptr;
  }
  void step() {
    if (done_) return;
    go_.release();
    stopped_.acquire();
  }
  // In the body: the rest comes with the next step.
  static void end_step() {
    SteppedClient& self = *current;
    self.stopped_.release();
    self.go_.acquire();
  }

 private:
  static inline thread_local SteppedClient* current = nullptr;
  std::binary_semaphore go_{0}, stopped_{0};
  bool done_ = false;
  std::jthread thread_;
};

// The moments of a client's steps, in order; moment number `moments` is after the last store.
using Schedule = std::vector<std::uint64_t>;

// Every schedule of `steps` steps from `first` to `last`.
void add_all(Schedule begun, std::size_t steps, std::uint64_t first, std::uint64_t last,
             std::set<Schedule>& all) {
  if (begun.size() == steps) {
    all.insert(std::move(begun));
    return;
  }
  for (std::uint64_t next = first; next <= last; ++next) {
    Schedule longer = begun;
    longer.push_back(next);
    add_all(std::move(longer), steps, next, last, all);
  }
}

// All of them where they are few. Else all within a few stores, and all that stop once, anywhere,
// for any time.
std::set<Schedule> schedules_of(std::uint64_t moments, std::size_t steps) {
  constexpr std::uint64_t kSchedulesMax = 3000;
  constexpr std::uint64_t kFewMoments = 20;
  const std::uint64_t window = steps <= 4 ? 3 : 2;
  double count = 1;
  for (std::size_t i = 1; i <= steps; ++i) {
    count *= static_cast<double>(moments + i) / static_cast<double>(i);
  }
  std::set<Schedule> schedules;
  if (count <= kSchedulesMax) {
    add_all({}, steps, 0, moments, schedules);
    return schedules;
  }
  const std::uint64_t stride = moments <= kFewMoments ? 1 : 4;
  for (std::uint64_t i = 0; i <= moments; ++i) {
    add_all({i}, steps, i, std::min(moments, i + window), schedules);
    for (std::uint64_t j = i; j <= moments; j += stride) {
      for (std::size_t before = 1; before < steps; ++before) {
        Schedule stops_once(steps, j);
        std::fill_n(stops_once.begin(), before, i);
        schedules.insert(std::move(stops_once));
      }
    }
  }
  return schedules;
}

std::string text_of(const Schedule& schedule) {
  std::string text = " steps at";
  for (const std::uint64_t moment : schedule) text += ' ' + std::to_string(moment);
  return text;
}

// Runs the operation with the client's steps at their moments.
void run_across(World& world, const Operation& operation, const Schedule& schedule,
                SteppedClient& client) {
  std::size_t taken = 0;
  const auto take_steps = [&](std::uint64_t moment) {
    for (; taken < schedule.size() && schedule[taken] == moment; ++taken) client.step();
  };
  const std::uint64_t moments = run_with(world, operation, take_steps);
  for (std::uint64_t moment = moments; taken < schedule.size(); ++moment) take_steps(moment);
}

std::optional<CoreView> view_of(const World& world, const CoreClient& client, std::uint32_t pin,
                                Generation generation) {
  const core::ShardId shard = client.client.shard;
  return test::view_of(world.h.tables(shard), shard, pin, world.slot, generation);
}

// Which of `allowed` the view shows; -1: none of them, whole.
int shown(const CoreClient& client, const std::string& session, std::uint64_t epoch,
          const CoreView& view, const std::vector<Versions>& allowed) {
  for (std::size_t i = 0; i < allowed.size(); ++i) {
    if (view.length.value() == allowed[i].size() && view.chunks.size() * 16 >= allowed[i].size() &&
        client.wrong_bytes(session, epoch, view, allowed[i]) == 0) {
      return static_cast<int>(i);
    }
  }
  return -1;
}

// Head and identity | claim | length | head, and a look.
constexpr std::size_t kReadersSteps = 4;

void read_across(const Operation& operation, const Schedule& schedule) {
  SCOPED_TRACE(operation.name + text_of(schedule));
  World world;
  const auto tables = world.h.tables(world.reader.client.shard);
  client::PinWords pins(tables.untrusted_page(world.reader.client.page));
  std::optional<CoreView> view;
  int first_shown = -2;
  {
    SteppedClient reader([&] {
      const SlotRecord& record = tables.slot(world.slot);
      const HeadWord head = load_head(record.head);
      if (head.tip.is_free() || !slot_has_session(record, id("a")) ||
          record.epoch.load(std::memory_order_acquire) != 1) {
        return;
      }
      SteppedClient::end_step();
      const auto word = pins.claim({world.slot, head.generation});
      SteppedClient::end_step();
      view = view_of(world, world.reader, *word, head.generation);
      if (!view) return pins.unpin(*word);
      first_shown = shown(world.reader, "a", 1, *view, operation.may_read);
    });
    run_across(world, operation, schedule, reader);
  }
  world.reuse_memory();
  if (view) {
    EXPECT_NE(first_shown, -1) << "torn, stale or foreign bytes";
    EXPECT_EQ(shown(world.reader, "a", 1, *view, operation.may_read), first_shown)
        << "pinned bytes changed";
  }
  EXPECT_EQ(world.h.core->verify(), std::nullopt);
}

class EveryInterleaving : public ::testing::TestWithParam<std::size_t> {
 protected:
  const Operation operation = operations()[GetParam()];
};

TEST_P(EveryInterleaving, OfAReader) {
  const std::uint64_t moments = count_moments(operation);
  ASSERT_GT(moments, 4u);
  for (const Schedule& schedule : schedules_of(moments, kReadersSteps)) {
    read_across(operation, schedule);
    if (HasFailure()) return;
  }
}

// Claim | length | head | stores to the chunk | publish | unpin.
constexpr std::size_t kWritersSteps = 6;

// Everybody's published bytes are their own and whole, whatever the late writer stored.
void expect_whole(World& world, const std::vector<Versions>& allowed) {
  for (const auto& context : world.h.core->contexts()) {
    const std::string session(context.session.bytes());
    const std::uint64_t epoch = context.epoch.value();
    auto with_own = allowed;
    if (session == "reuse") with_own.push_back(Versions(context.length.value(), 9));
    const auto view = world.other.resolve(session, epoch, context.length.value());
    ASSERT_TRUE(view.has_value()) << session;
    EXPECT_NE(shown(world.other, session, epoch, *view, with_own), -1) << session << ' ' << epoch;
    world.other.unpin(*view);
  }
}

void write_across(const Operation& operation, const Schedule& schedule) {
  SCOPED_TRACE(operation.name + text_of(schedule));
  World world;
  const auto granted = world.holder.grant("a", 1, 24);
  ASSERT_TRUE(granted.has_value());
  client::PinWords pins(
      world.h.tables(world.holder.client.shard).untrusted_page(world.holder.client.page));
  bool acknowledged = false;
  {
    SteppedClient writer([&] {
      const auto word = pins.claim({granted->slot, granted->generation});
      SteppedClient::end_step();
      const auto view = view_of(world, world.holder, *word, granted->generation);
      SteppedClient::end_step();
      // As the library: from where it found the length, if the grant reaches so far.
      if (view && view->length == TokenCount{20}) {
        ASSERT_EQ(view->chunks.size(), 2u);
        world.holder.write("a", 1, *view, 20, 24, 7);  // plain stores nobody can fence off
        SteppedClient::end_step();
        acknowledged = world.holder.publish(*view, 20, 24);
        SteppedClient::end_step();
      }
      pins.unpin(*word);
    });
    run_across(world, operation, schedule, writer);
  }
  std::vector<Versions> allowed;
  for (const Versions& versions : operation.may_read) {
    // Never acknowledged and lost: whoever goes on from what is published goes on from these, too.
    if (!acknowledged || !operation.keeps_published) allowed.push_back(versions);
    if (!acknowledged || versions.size() < 20) continue;
    Versions more = written(4, 7, Versions(versions.begin(), versions.begin() + 20));
    more.insert(more.end(), versions.begin() + 20, versions.end());
    allowed.push_back(more);
  }
  allowed.push_back(written(20, 2));
  allowed.push_back(written(20, 5));
  expect_whole(world, allowed);
  world.reuse_memory();
  expect_whole(world, allowed);
  EXPECT_EQ(world.h.core->verify(), std::nullopt);
}

TEST_P(EveryInterleaving, OfAWriter) {
  for (const Schedule& schedule : schedules_of(count_moments(operation), kWritersSteps)) {
    write_across(operation, schedule);
    if (HasFailure()) return;
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
