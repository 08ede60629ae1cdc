// Words of every kind of value in the memory that a client may write: lengths, touches, pins.

#include <gtest/gtest.h>
#include <sys/mman.h>
#include <unistd.h>

#include <atomic>
#include <nlohmann/json.hpp>
#include <random>
#include <string>
#include <vector>

#include "shared/mapping.hpp"
#include "tests/hostile/conversation.hpp"
#include "tests/support/under_fire.hpp"

namespace hotkv::testing {
namespace {

using protocol::AttachReply;
using protocol::OperationResult;

// A writer that maps all of arena and pages, and stores what it likes.
class Scribbler {
 public:
  explicit Scribbler(const DaemonProcess& daemon) : client_(daemon.control_path()) {
    (void)client_.hello();
    RawReply attached = client_.attach(worker_recipe(), Access::write);
    const auto reply = attached.body_as<AttachReply>();
    tables_ = map(attached, 0, reply.tables_bytes, MapAccess::read_only);
    arena_ = map(attached, 1, reply.arena_bytes, MapAccess::read_write);
    pages_ = map(attached, 2, reply.pages_bytes, MapAccess::read_write);
    own_page_ = reply.page;
    layout_ = FileLayout::of(header().capacities, decode_geometry(header().geometry));
  }

  [[nodiscard]] RawClient& client() { return client_; }
  [[nodiscard]] const TablesHeader& header() const {
    return *reinterpret_cast<const TablesHeader*>(tables_.bytes().data());
  }
  [[nodiscard]] std::span<LengthLine> lines() const {
    return {reinterpret_cast<LengthLine*>(arena_.bytes().data()), header().capacities.slot_count};
  }
  [[nodiscard]] std::span<TouchWord> touches() const {
    return {reinterpret_cast<TouchWord*>(pages_.bytes().data()), header().capacities.slot_count};
  }
  [[nodiscard]] ClientPage& page(std::uint32_t index) const {
    return *reinterpret_cast<ClientPage*>(pages_.bytes().data() +
                                          layout_.client_page(PageIndex{index}).value());
  }
  [[nodiscard]] ClientPage& own_page() const { return page(own_page_); }
  [[nodiscard]] HeadWord head(std::uint32_t slot) const {
    const auto* slots =
        reinterpret_cast<const SlotRecord*>(tables_.bytes().data() + layout_.slots.value());
    return load_head(slots[slot].head);
  }

  // `next()` into every length, every touch and every word of every page, its own and others'.
  template <class Next>
  void scribble_everywhere(Next next) const {
    for (LengthLine& line : lines()) line.word.store(next());
    for (TouchWord& touch : touches()) touch.store(static_cast<std::uint32_t>(next()));
    for (std::uint32_t index = 0; index < header().capacities.page_count; ++index) {
      page(index).high_water.store(static_cast<std::uint32_t>(next()));
      for (AtomicWord& pin : page(index).pins) pin.store(next());
    }
  }

 private:
  static Mapping map(const RawReply& attached, std::size_t file, std::uint64_t bytes,
                     MapAccess access) {
    return Mapping::map(attached.descriptors.fds[file].get(),
                        {.offset_bytes = 0, .size_bytes = bytes, .access = access}, "file")
        .value();
  }

  RawClient client_;
  Mapping tables_, arena_, pages_;
  std::uint32_t own_page_ = 0;
  FileLayout layout_;
};

// Contexts of one raw client, used so that the daemon looks at the words behind them.
class Provoker {
 public:
  explicit Provoker(RawClient& client) : client_(client) {}

  // Makes, grows, rolls back, asks after and ends contexts. Refusals are fine, silence is not.
  void provoke() {
    const std::string session = "s" + std::to_string(count_++ % 24);
    const OperationResult opened = answered(client_.open(session, 1));
    const std::uint32_t generation = opened.generation;
    answered(client_.append(session, 1, generation, opened.length_tokens % 64 + 20));
    answered(client_.explain(session, 1, 20));
    const std::uint32_t length = client_.explain(session, 1, 0).length_tokens;
    answered(client_.truncate(session, 1, generation, length, length / 2));
    const OperationResult again = answered(client_.open(session, 1));
    answered(client_.append(session, 1, again.generation, length / 2 % 64 + 17));
    if (count_ % 3 == 0) answered(client_.close(session, 1, again.generation));
    if (count_ % 5 == 0) answered(client_.release(session, 1));
  }

 private:
  static OperationResult answered(const OperationResult& result) {
    EXPECT_LE(result.outcome, static_cast<std::uint32_t>(protocol::Outcome::error));
    return result;
  }

  RawClient& client_;
  std::uint64_t count_ = 0;
};

std::vector<std::uint64_t> kinds_of_values() {
  std::vector<std::uint64_t> values{0,
                                    ~std::uint64_t{0},
                                    0xaaaa'aaaa'aaaa'aaaa,
                                    0x5555'5555'5555'5555,
                                    0x0000'0001'0000'0001,
                                    0xffff'fff0'0000'0001,
                                    0x7fff'ffff'7fff'ffff};
  for (int bit = 0; bit < 64; ++bit) values.push_back(std::uint64_t{1} << bit);
  return values;
}

class SharedMemory : public UnderFire {
 protected:
  SharedMemory()
      : UnderFire({.flags = {"--max-bytes=16M", "--hugepages=off", "--chunk-tokens=16",
                             "--session-cap=64", "--clients-per-shard=8"}}) {}

  // With the scribbler gone the shard serves again, with right bytes. A page that it wrote on while
  // nobody had it is as good as new.
  void expect_the_shard_recovers() {
    std::vector<std::unique_ptr<KvWorker>> workers;
    for (int count = 0; count < 4; ++count) {
      workers.push_back(std::make_unique<KvWorker>(daemon_.control_path()));
      KvWorker& worker = *workers.back();
      const std::string session = "fresh-" + std::to_string(count);
      ASSERT_EQ(why(worker.open(session, 1)), "");
      ASSERT_EQ(why(worker.append(session, 40)), "");
      const auto view =
          worker.client().resolve(SessionId::from(session).value(), Epoch{1}, TokenCount{40});
      ASSERT_TRUE(view.has_value()) << count << ": " << view.error().message();
      EXPECT_EQ(wrong_bytes(worker_recipe(), session, 1, *view), 0U);
    }
  }
};

TEST_F(SharedMemory, EveryKindOfValueInEveryWritableWordHurtsNobodyElse) {
  {
    Scribbler scribbler(daemon_);
    RawClient other = attached_client(daemon_.control_path(), Access::write, worker_recipe());
    Provoker own(scribbler.client());
    Provoker others(other);
    own.provoke();
    for (const std::uint64_t value : kinds_of_values()) {
      scribbler.scribble_everywhere([value] { return value; });
      own.provoke();
      others.provoke();
      ASSERT_EQ(broken_invariant(daemon_), "") << std::hex << value;
    }
    constexpr std::uint32_t kSeed = 20261129;
    std::mt19937_64 random(kSeed);
    for (int round = 0; round < 40; ++round) {
      scribbler.scribble_everywhere([&] { return random(); });
      own.provoke();
      others.provoke();
      ASSERT_EQ(broken_invariant(daemon_), "") << round;
    }
  }
  expect_the_shard_recovers();
}

// Right generations with wrong lengths, and pins of slots and generations that there are, were, and
// will be: what passes the first look.
TEST_F(SharedMemory, ValuesThatCouldBeTrueHurtNobodyElse) {
  {
    Scribbler scribbler(daemon_);
    RawClient other = attached_client(daemon_.control_path(), Access::write, worker_recipe());
    Provoker own(scribbler.client());
    Provoker others(other);
    const auto slot_count = scribbler.header().capacities.slot_count;
    std::uint64_t count = 0;
    for (const std::uint32_t tokens : {0U, 1U, 15U, 16U, 17U, 20U, 32U, 33U, 64U, 0x7fff'ffffU,
                                       0x8000'0000U, 0xffff'fff0U, 0xffff'ffffU}) {
      for (const std::int32_t ahead : {0, -1, 1}) {
        for (std::uint32_t slot = 0; slot < slot_count; ++slot) {
          const Generation generation{scribbler.head(slot).generation.value() +
                                      static_cast<std::uint32_t>(ahead)};
          scribbler.lines()[slot].word.store(LengthWord{generation, TokenCount{tokens}}.bits());
          ClientPage& page = scribbler.page(slot % 3);
          page.pins[count++ % kPinsPerPage].store(
              PinWord{SlotIndex{slot + (tokens == 33 ? slot_count : 0)}, generation}.bits());
          page.high_water.store(kPinsPerPage);
        }
        own.provoke();
        others.provoke();
        ASSERT_EQ(broken_invariant(daemon_), "") << tokens << " " << ahead;
      }
    }
  }
  expect_the_shard_recovers();
}

// A worker of the same shard, through the library, as long as it is told to and its parent is
// there. It may miss and be refused, and whoever shares its memory can lie to it; it must not
// crash.
int work_through_lies(const std::string& control_path, const std::atomic<bool>& ending,
                      pid_t parent) {
  KvWorker worker(control_path);
  for (std::uint64_t epoch = 1; !ending && ::getppid() == parent; ++epoch) {
    if (!worker.open("victim", epoch)) continue;
    (void)worker.append("victim", 40);
    for (const auto match : {LengthMatch::exact, LengthMatch::any}) {
      const auto view = worker.client().resolve(SessionId::from("victim").value(), Epoch{epoch},
                                                TokenCount{40}, match);
      if (view) (void)wrong_bytes(worker_recipe(), "victim", epoch, *view);
    }
    (void)worker.context("victim").truncate(TokenCount{17});
    (void)worker.append("victim", 5);
    (void)worker.context("victim").release();
    worker.drop("victim");
  }
  return 0;
}

TEST_F(SharedMemory, AWorkerOfTheSameShardMayMissButNeverCrashes) {
  void* const shared = ::mmap(nullptr, sizeof(std::atomic<bool>), PROT_READ | PROT_WRITE,
                              MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  ASSERT_NE(shared, MAP_FAILED);
  auto& ending = *new (shared) std::atomic<bool>(false);
  ForkedChild victim([&, parent = ::getpid()] {
    return work_through_lies(daemon_.control_path(), ending, parent);
  });
  ASSERT_TRUE(eventually([&] {
    const auto shard = shard_status(daemon_, "tiny");
    return shard.is_object() && shard.at("counters").at("releases") >= 3;
  }));
  {
    Scribbler scribbler(daemon_);
    std::mt19937_64 random(7);
    const auto values = kinds_of_values();
    for (int round = 0; round < 3000; ++round) {
      const std::uint64_t value = random() % 2 == 0 ? values[random() % values.size()] : random();
      const auto slot = static_cast<std::uint32_t>(random() % 4);
      const LengthWord likely{scribbler.head(slot).generation,
                              TokenCount{static_cast<std::uint32_t>(value)}};
      scribbler.lines()[slot].word.store(round % 2 == 0 ? likely.bits() : value);
      scribbler.touches()[slot].store(static_cast<std::uint32_t>(value));
      ClientPage& page = scribbler.page(static_cast<std::uint32_t>(random() % 3));
      page.pins[random() % 8].store(value);
      page.high_water.store(static_cast<std::uint32_t>(value));
      if (round % 16 == 0) std::this_thread::sleep_for(std::chrono::microseconds(200));
      if (round % 300 == 0) {
        EXPECT_EQ(broken_invariant(daemon_), "") << round;
      }
    }
  }
  ending = true;
  EXPECT_EQ(victim.exit_code(), 0);
  ::munmap(shared, sizeof(std::atomic<bool>));
  expect_the_shard_recovers();
}

}  // namespace
}  // namespace hotkv::testing
