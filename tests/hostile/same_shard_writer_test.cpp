// Everything that a writer can store in, of its own shard: every byte of arena and pages. What that
// does to others is told in shared/README.md.

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/stat.h>

#include <algorithm>
#include <memory>
#include <nlohmann/json.hpp>
#include <random>
#include <string>
#include <vector>

#include "shared/mapping.hpp"
#include "tests/hostile/scribbler.hpp"
#include "tests/support/under_fire.hpp"

namespace hotkv::testing {
namespace {

class SameShardWriter : public UnderFire {
 protected:
  static constexpr std::uint64_t kBudget = 4 << 20;

  SameShardWriter()
      : UnderFire({.flags = {"--max-bytes=4M", "--hugepages=off", "--chunk-tokens=16",
                             "--session-cap=64", "--clients-per-shard=8"}}) {}

  // The daemon's tables are sound and within the budget, and it answers.
  void expect_sound(const std::string& when) const {
    EXPECT_EQ(broken_invariant(daemon_), "") << when;
    const auto account = admin_page(daemon_, "/status").at("account");
    std::uint64_t sum = 0;
    for (const char* part : {"used_bytes", "kept_bytes", "free_bytes", "in_transit_bytes"}) {
      sum += account.at(part).get<std::uint64_t>();
    }
    EXPECT_EQ(account.at("provisioned_bytes"), sum) << when;
    EXPECT_LE(sum, kBudget) << when;
  }
};

// Random words everywhere: lengths with their reserved words, chunks of others and of nobody, touch
// words, pins of others, and what lies between and behind them.
void scribble(std::span<std::byte> file, std::mt19937_64& random) {
  std::ranges::generate(std::span(reinterpret_cast<std::uint64_t*>(file.data()), file.size() / 8),
                        std::ref(random));
}

TEST_F(SameShardWriter, MayStoreInEveryByteItCanAndOtherShardsKeepTheirs) {
  KvWorker elsewhere(daemon_.control_path(), worker_recipe({0, 1}, "elsewhere"));
  ASSERT_EQ(why(elsewhere.open("kept", 1)), "");
  ASSERT_EQ(why(elsewhere.append("kept", 1000)), "");
  const auto view =
      elsewhere.client().resolve(SessionId::from("kept").value(), Epoch{1}, TokenCount{1000});
  ASSERT_TRUE(view.has_value());
  {
    Scribbler scribbler(daemon_);
    RawClient other = attached_client(daemon_.control_path(), Access::write, worker_recipe());
    Provoker own(scribbler.client());
    Provoker others(other);
    constexpr std::uint32_t kSeed = 20261130;
    std::mt19937_64 random(kSeed);
    for (int round = 0; round < 12; ++round) {
      const std::string when = "round " + std::to_string(round);
      scribble(scribbler.arena(), random);
      scribble(scribbler.pages(), random);
      own.provoke();
      others.provoke();
      expect_sound(when + ", scribbled");
      for (const int fd : {scribbler.arena_fd(), scribbler.pages_fd()}) {
        EXPECT_EQ(::fallocate(fd, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, 0, off_t{1} << 40),
                  0);
      }
      own.provoke();
      others.provoke();
      expect_sound(when + ", punched");
    }
  }
  EXPECT_EQ(wrong_bytes(worker_recipe({0, 1}, "elsewhere"), "kept", 1, *view), 0U);
  EXPECT_EQ(why(elsewhere.append("kept", 100)), "");
  // Nor is its own shard lost for good: what is made there from now on is right.
  KvWorker fresh(daemon_.control_path());
  ASSERT_EQ(why(fresh.open("fresh", 1)), "");
  ASSERT_EQ(why(fresh.append("fresh", 100)), "");
  const auto made =
      fresh.client().resolve(SessionId::from("fresh").value(), Epoch{1}, TokenCount{100});
  ASSERT_TRUE(made.has_value()) << made.error().message();
  EXPECT_EQ(wrong_bytes(worker_recipe(), "fresh", 1, *made), 0U);
}

// What readers of a damaged shard see: the bytes that were stored there last, and no others'. A
// view's length and its place stay what they were.
TEST_F(SameShardWriter, ChangesTheBytesOfItsShardsViewsAndNothingElseOfThem) {
  KvWorker victim(daemon_.control_path());
  ASSERT_EQ(why(victim.open("victim", 1)), "");
  ASSERT_EQ(why(victim.append("victim", 100)), "");
  const SessionId session = SessionId::from("victim").value();
  const auto view = victim.client().resolve(session, Epoch{1}, TokenCount{100});
  ASSERT_TRUE(view.has_value());
  ASSERT_EQ(wrong_bytes(worker_recipe(), "victim", 1, *view), 0U);
  Scribbler scribbler(daemon_);
  const std::size_t lines = scribbler.lines().size_bytes();
  std::ranges::fill(scribbler.arena().subspan(lines), std::byte{0x5a});
  EXPECT_EQ(view->length(), TokenCount{100});
  EXPECT_GT(wrong_bytes(worker_recipe(), "victim", 1, *view), 100U * 128 * 9 / 10);
  // Of a length that is not the context's, a resolve says so; it finds nothing beyond the grant.
  for (const std::uint32_t lie : {0U, 99U, 101U, 112U, 113U, 1'000'000U, ~0U}) {
    for (std::uint32_t slot = 0; slot < scribbler.header().capacities.slot_count; ++slot) {
      const LengthWord word{scribbler.head(slot).generation, TokenCount{lie}};
      scribbler.lines()[slot].word.store(word.bits());
    }
    const auto again = victim.client().resolve(session, Epoch{1}, TokenCount{100});
    EXPECT_FALSE(again.has_value()) << lie;
    const auto any =
        victim.client().resolve(session, Epoch{1}, TokenCount{0}, LengthMatch::at_least);
    if (any) {
      EXPECT_LE(any->length().value(), 112U) << lie;
    }
    const auto contexts = admin_page(daemon_, "/contexts").at("contexts");
    EXPECT_GE(contexts.size(), 1U);
    for (const auto& context : contexts) {
      EXPECT_LE(context.at("length_tokens"), context.at("writable_tokens")) << lie;
    }
    expect_sound("a length of " + std::to_string(lie));
  }
}

// Reading a page that is not there makes it, also through a read-only mapping: memory that is in no
// account. It is given back, again and again, and nobody else's memory with it.
TEST_F(SameShardWriter, HolesThatAReaderFillsAreGivenBackAgainAndAgain) {
  KvWorker worker(daemon_.control_path(), worker_recipe());
  ASSERT_EQ(why(worker.open("kept", 1)), "");
  ASSERT_EQ(why(worker.append("kept", 1000)), "");
  RawClient reader(daemon_.control_path());
  (void)reader.hello();
  RawReply attached = reader.attach(worker_recipe(), Access::read);
  reader.stay_alive(attached);
  const int arena = attached.descriptors.fds[1].get();
  const auto bytes = attached.body_as<protocol::AttachReply>().arena_bytes;
  const auto mapping = Mapping::map(arena, {.size_bytes = bytes}, "arena").value();
  const auto allocated = [&] {
    struct stat found {};
    EXPECT_EQ(::fstat(arena, &found), 0);
    return static_cast<std::uint64_t>(found.st_blocks) * 512;
  };
  const std::uint64_t provisioned =
      admin_page(daemon_, "/status").at("account").at("provisioned_bytes");
  constexpr std::uint64_t kLengthLines = 2 << 20;  // they lie before the chunks
  for (int round = 0; round < 2; ++round) {
    SCOPED_TRACE(round);
    const volatile std::byte* const hole = mapping.bytes().data();
    for (std::uint64_t at = 0; at < bytes; at += 4096) (void)hole[at];
    EXPECT_GE(allocated(), bytes);
    EXPECT_TRUE(eventually([&] { return allocated() <= provisioned + kLengthLines; }))
        << allocated() << " of " << bytes;
  }
  EXPECT_TRUE(eventually([&] { return log_lines("event=surplus-memory") >= 2; }));
  const auto view =
      worker.client().resolve(SessionId::from("kept").value(), Epoch{1}, TokenCount{1000});
  ASSERT_TRUE(view.has_value());
  EXPECT_EQ(wrong_bytes(worker_recipe(), "kept", 1, *view), 0U);
  expect_sound("at the end");
}

}  // namespace
}  // namespace hotkv::testing
