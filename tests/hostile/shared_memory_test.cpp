// Words of every kind of value in the memory that a client may write: lengths, touches, pins.

#include <gtest/gtest.h>
#include <sys/mman.h>
#include <unistd.h>

#include <atomic>
#include <nlohmann/json.hpp>
#include <random>
#include <string>
#include <vector>

#include "tests/hostile/scribbler.hpp"
#include "tests/support/under_fire.hpp"

namespace hotkv::testing {
namespace {

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
