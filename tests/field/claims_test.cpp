// Dead clients, claims and leaks.

#include <dirent.h>
#include <gtest/gtest.h>
#include <signal.h>

#include <algorithm>
#include <chrono>
#include <filesystem>
#include <fstream>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "shared/layout.hpp"
#include "tests/support/processor_time.hpp"
#include "tests/support/raw_client.hpp"
#include "tests/support/small_daemon.hpp"

namespace hotkv::testing {
namespace {

using Clock = std::chrono::steady_clock;
using std::chrono::milliseconds;

class Claims : public SmallDaemon {
 protected:
  explicit Claims(const std::vector<std::string>& flags = {}) : SmallDaemon(flags) {}

  // Sessions "s0", "s1", … of so many chunks each; nobody has their lease.
  void fill(KvWorker& writer, int sessions, std::uint32_t chunks) {
    for (int i = 0; i < sessions; ++i) {
      const std::string name = "s" + std::to_string(i);
      ASSERT_TRUE(writer.open(name, 1));
      ASSERT_TRUE(writer.append(name, chunks * kChunkTokens));
      ASSERT_TRUE(writer.context(name).close());
      writer.drop(name);
    }
  }
  std::uint64_t used_bytes() const { return shard_number("/account/used_bytes"); }
  std::uint64_t kept_bytes() const { return shard_number("/account/kept_bytes"); }
};

// FR-001: looking does not add up to a claim, however often an idle client has looked.
TEST_F(Claims, ThousandsOfViewsThatWereLetGoHoldNothing) {
  KvWorker writer(daemon_.control_path());
  KvWorker reader(daemon_.control_path(), worker_recipe(), Access::read);
  fill(writer, 8, 4);
  for (int i = 0; i < 8; ++i) {
    const SessionId session = session_id("s" + std::to_string(i));
    for (int round = 0; round < 1000; ++round) {
      ASSERT_TRUE(reader.client().get(session, Epoch{1}).has_value());
    }
    // A miss claims nothing either.
    EXPECT_FALSE(reader.client().resolve(session, Epoch{1}, TokenCount{1}).has_value());
  }
  EXPECT_EQ(pinned_contexts(), 0U);
  KvWorker other(daemon_.control_path());
  EXPECT_EQ(whole_budget_refusal(other), "");
}

// FR-001: views that are never let go of hold as long as their client lives, and no longer.
TEST_F(Claims, ViewsEndWithTheProcessThatHeldThem) {
  KvWorker writer(daemon_.control_path());
  fill(writer, 8, 8);
  Turns turns;
  ForkedChild reader_process([&] {
    KvWorker reader(daemon_.control_path(), worker_recipe(), Access::read);
    std::vector<View> views;
    for (int i = 0; i < 24; ++i) {
      auto view = reader.client().get(session_id("s" + std::to_string(i % 8)), Epoch{1});
      if (!view) return 1;
      views.push_back(std::move(*view));
    }
    turns.arrive_and_wait();
    return 0;
  });
  ASSERT_TRUE(turns.wait_for_child());
  EXPECT_EQ(pinned_contexts(), 8U);
  ASSERT_TRUE(writer.open("new", 1));
  const auto refused = writer.append("new", 1);
  ASSERT_FALSE(refused.has_value());
  EXPECT_TRUE(refused.error().is(ErrorCode::budget_exceeded)) << why(refused);
  reader_process.kill_and_wait();
  EXPECT_TRUE(eventually([&] { return pinned_contexts() == 0; }));
  EXPECT_EQ(whole_budget_refusal(writer), "");
}

// FR-002: after a truncate a fresh view holds the chunks of its own length and no others.
TEST_F(Claims, AReaderThatLooksAgainAfterATruncateHoldsOnlyWhatIsLeft) {
  KvWorker writer(daemon_.control_path());
  KvWorker reader(daemon_.control_path(), worker_recipe(), Access::read);
  std::uint64_t epoch = 0;
  for (const std::uint32_t to : {3 * kChunkTokens, 3 * kChunkTokens - 5}) {
    ++epoch;
    ASSERT_TRUE(writer.open("s", epoch));
    ASSERT_TRUE(writer.append("s", 10 * kChunkTokens));
    auto view = reader.client().get(session_id("s"), Epoch{epoch});
    ASSERT_TRUE(view.has_value());
    ASSERT_TRUE(writer.context("s").truncate(TokenCount{to}));
    EXPECT_EQ(kept_bytes(), 7 * kChunkBytes);
    view = reader.client().resolve(session_id("s"), Epoch{epoch}, TokenCount{to});
    ASSERT_TRUE(view.has_value());
    ASSERT_TRUE(writer.open("other", epoch));  // a message: the occasion to look at the pins
    EXPECT_EQ(kept_bytes(), 0U);
    EXPECT_EQ(used_bytes(), 3 * kChunkBytes);
    ASSERT_TRUE(writer.append("other", (kChunks - 3) * kChunkTokens));
    EXPECT_EQ(wrong_bytes(worker_recipe(), "s", epoch, *view), 0U);
    ASSERT_TRUE(writer.context("other").release());
  }
}

// FR-004: workers killed between grant and publish, far more of them than there is room for, leave
// nothing booked.
TEST_F(Claims, WorkersKilledBeforeTheyPublishBookNothing) {
  KvWorker keeper(daemon_.control_path());
  ASSERT_TRUE(keeper.open("s", 1));
  ASSERT_TRUE(keeper.append("s", 20));
  ASSERT_TRUE(keeper.context("s").close());
  const std::uint64_t before = used_bytes();
  for (int round = 0; round < 40; ++round) {
    Turns turns;
    ForkedChild victim([&] {
      KvWorker worker(daemon_.control_path());
      if (!worker.open("s", 1)) return 1;
      auto writer = worker.context("s").append(TokenCount{8 * kChunkTokens});
      if (!writer) return 2;
      worker.fill("s", 1, *writer, 0, 4 * kChunkTokens, 9);
      turns.arrive_and_wait();
      return 3;
    });
    ASSERT_TRUE(turns.wait_for_child()) << "round " << round << ": " << victim.exit_code();
    ASSERT_GT(used_bytes(), before + 7 * kChunkBytes);
    victim.kill_and_wait();
    // An open or a need of memory asks at once who is gone; without one it takes up to a second.
    if (round % 10 != 0) continue;
    ASSERT_TRUE(eventually([&] { return used_bytes() == before && kept_bytes() == 0; }))
        << "round " << round << ": " << used_bytes();
  }
  EXPECT_TRUE(eventually([&] { return used_bytes() == before && kept_bytes() == 0; }));
  ASSERT_TRUE(keeper.open("s", 1));
  EXPECT_EQ(keeper.context("s").length(), TokenCount{20});
  const auto view = keeper.client().get(session_id("s"), Epoch{1});
  ASSERT_TRUE(view.has_value());
  EXPECT_EQ(wrong_bytes(worker_recipe(), "s", 1, *view), 0U);
}

// FR-005: of a batch that runs out of pins half way, nothing is held but what it has returned.
TEST_F(Claims, ABatchThatFailsHalfWayHoldsWhatItReturnedAndNoMore) {
  constexpr std::uint32_t kBatch = 16;
  constexpr std::uint32_t kLeft = 7;
  KvWorker worker(daemon_.control_path());
  std::vector<AppendRequest> requests;
  for (std::uint32_t i = 0; i < kBatch; ++i) {
    const std::string name = "s" + std::to_string(i);
    ASSERT_TRUE(worker.open(name, 1));
    ASSERT_TRUE(worker.append(name, 1));
    requests.push_back({&worker.context(name), TokenCount{1}});
  }
  std::vector<View> views;
  while (views.size() < kPinsPerPage - kLeft) {
    auto view = worker.client().get(session_id("s15"), Epoch{1});
    ASSERT_TRUE(view.has_value());
    views.push_back(std::move(*view));
  }
  {
    const auto writers = worker.client().append(requests);
    for (std::uint32_t i = 0; i < kBatch; ++i) {
      EXPECT_EQ(writers.at(i).has_value(), i < kLeft) << i;
      if (i >= kLeft) {
        EXPECT_TRUE(writers.at(i).error().is(ErrorCode::too_many_pins)) << i;
      }
    }
    EXPECT_EQ(pinned_contexts(), kLeft + 1);
  }
  EXPECT_EQ(pinned_contexts(), 1U);
  views.clear();
  EXPECT_EQ(pinned_contexts(), 0U);
  for (const auto& writer : worker.client().append(requests)) EXPECT_TRUE(writer.has_value());
}

// What a process has of a daemon: mapped memory files, descriptors, threads.
struct Footprint {
  std::size_t mappings = 0;
  std::ptrdiff_t descriptors = 0;
  std::ptrdiff_t threads = 0;
  friend bool operator==(const Footprint&, const Footprint&) = default;
};
Footprint own_footprint() {
  Footprint now;
  std::ifstream maps("/proc/self/maps");
  for (std::string line; std::getline(maps, line);) {
    now.mappings += line.find("/memfd:") != std::string::npos ? 1 : 0;
  }
  const auto entries = [](const char* folder) {
    return std::distance(std::filesystem::directory_iterator(folder), {});
  };
  now.descriptors = entries("/proc/self/fd");
  now.threads = entries("/proc/self/task");
  return now;
}

// The number of the first thing that is not as it should be, or 0.
int let_go_of_a_dead_daemon(const std::string& control_path, const Turns& turns) {
  const Footprint before = own_footprint();
  Clock::time_point begin;
  {
    // Whoever waited for the daemon here would wait a minute.
    auto client =
        Client::attach({control_path, Access::write, std::chrono::minutes(1)}, worker_recipe());
    if (!client) return 1;
    std::vector<Context> contexts;
    for (const char* session : {"a", "b", "c"}) {
      auto context = client->open(session_id(session), Epoch{1});
      if (!context) return 2;
      contexts.push_back(std::move(*context));
    }
    auto writer = contexts[0].append(TokenCount{20});
    if (!writer || !writer->publish(TokenCount{10})) return 3;
    const auto view = client->get(session_id("a"), Epoch{1});
    const Footprint attached = own_footprint();
    if (!view || attached.mappings <= before.mappings) return 4;
    if (attached.descriptors <= before.descriptors || attached.threads <= before.threads) return 5;
    turns.arrive_and_wait();  // and now the daemon is dead
    begin = Clock::now();
    for (const auto& told : {contexts[0].close(), contexts[1].release()}) {
      if (told || !told.error().is(ErrorCode::daemon_unavailable)) return 6;
    }
  }
  if (Clock::now() - begin > std::chrono::seconds(20)) return 7;
  return own_footprint() == before ? 0 : 8;
}

// FR-007: with its daemon dead a client lets go of mappings, descriptors and threads all the same.
TEST(ClaimsOnADeadDaemon, AreLetGoOfAtOnceAndWhole) {
  DaemonProcess daemon({.flags = {"--max-bytes=256K", "--hugepages=off", "--chunk-tokens=16"}});
  ASSERT_TRUE(daemon.wait_ready()) << daemon.err();
  Turns turns;
  ForkedChild worker([&] { return let_go_of_a_dead_daemon(daemon.control_path(), turns); });
  ASSERT_TRUE(turns.wait_for_child()) << worker.exit_code();
  daemon.kill();
  turns.go_on();
  EXPECT_EQ(worker.exit_code(), 0);
}

class ClaimsWithAShortTimeToLive : public Claims {
 protected:
  static constexpr milliseconds kTimeToLive{500};
  ClaimsWithAShortTimeToLive() : Claims({"--default-ttl=500ms"}) {}
};

// FR-010: a reader that does not run is not a reader that is gone: no time ends its claim.
TEST_F(ClaimsWithAShortTimeToLive, AStoppedReaderFindsItsBytesAsTheyWere) {
  KvWorker writer(daemon_.control_path());
  ASSERT_TRUE(writer.open("kept", 1));
  ASSERT_TRUE(writer.append("kept", 4 * kChunkTokens));
  Turns turns;
  ForkedChild reader_process([&] {
    KvWorker reader(daemon_.control_path(), worker_recipe(), Access::read);
    const auto view = reader.client().get(session_id("kept"), Epoch{1});
    if (!view) return 1;
    turns.arrive_and_wait();
    return wrong_bytes(worker_recipe(), "kept", 1, *view) == 0 ? 0 : 2;
  });
  ASSERT_TRUE(turns.wait_for_child());
  reader_process.stop();
  const auto end = Clock::now() + 3 * kTimeToLive;
  for (int i = 0; Clock::now() < end; ++i) {
    const std::string name = "filler" + std::to_string(i);
    ASSERT_TRUE(writer.open(name, 1));
    ASSERT_TRUE(writer.append(name, 20 * kChunkTokens, 1)) << "memory of others is there to be had";
    writer.drop(name);
    std::this_thread::sleep_for(milliseconds(1));
  }
  EXPECT_EQ(pinned_contexts(), 1U);
  // The context may end; what was pinned of it may not.
  ASSERT_TRUE(writer.client().release(session_id("kept"), Epoch{1}));
  ASSERT_TRUE(writer.open("last filler", 1));
  ASSERT_TRUE(writer.append("last filler", (kChunks - 4) * kChunkTokens, 1));
  ::kill(reader_process.pid(), SIGCONT);
  turns.go_on();
  EXPECT_EQ(reader_process.exit_code(), 0);
}

// FR-014: what is released is there for others before the call returns, whatever the client does
// next, and nobody has to be evicted for it.
TEST_F(Claims, ABigContextIsGivenBackByTheCallThatReleasesIt) {
  KvWorker idle(daemon_.control_path());
  KvWorker other(daemon_.control_path());
  constexpr std::uint32_t kMost = kChunks * 8 / 10 * kChunkTokens;
  const auto others_get_half = [&](std::uint64_t epoch) {
    ASSERT_TRUE(other.open("other", epoch));
    const auto half = other.append("other", kChunks / 2 * kChunkTokens);
    EXPECT_TRUE(half.has_value()) << why(half);
    ASSERT_TRUE(other.context("other").release());
  };
  ASSERT_TRUE(idle.open("big", 1));
  ASSERT_TRUE(idle.append("big", kMost));
  ASSERT_TRUE(idle.context("big").release());
  EXPECT_EQ(used_bytes(), 0U);
  others_get_half(1);
  ASSERT_TRUE(idle.open("big", 2));
  ASSERT_TRUE(idle.append("big", kMost));
  ASSERT_TRUE(idle.client().release(session_id("big"), Epoch{2}));
  others_get_half(2);
  // Room that was granted and not used goes back with the lease, which a destructor gives back.
  ASSERT_TRUE(idle.open("big", 3));
  ASSERT_TRUE(idle.context("big").reserve(TokenCount{kMost}));
  idle.drop("big");
  EXPECT_TRUE(eventually([&] { return used_bytes() == 0; }));
  others_get_half(3);
  EXPECT_EQ(shard_number("/counters/contexts_ended/evicted-lru"), 0U);
  EXPECT_EQ(shard_number("/counters/evictions_in_vain"), 0U);
}

// Orphaned claims, as a class: a client that is gone right after any message, whether it was
// carried out or not, holds nothing afterwards.
TEST_F(Claims, AClientGoneRightAfterAnyMessageHoldsNothing) {
  using namespace protocol;
  KvWorker keeper(daemon_.control_path());
  const ContextName name = context_name("s", 1);
  const auto messages = [&](const RawClient& client, std::uint32_t generation) {
    OpenOperation open{};
    open.context = context_name("t", 1);
    std::ranges::copy(client.fingerprint(), open.fingerprint);
    return std::vector<Bytes>{
        make_frame<OpenOperation>(Type::open, 90, {open}),
        make_frame<AppendOperation>(Type::append, 91, {{name, generation, 500}}),
        make_frame<TruncateOperation>(Type::truncate, 92, {{name, generation, 0, 0, 0}}),
        make_frame<CloseOperation>(Type::close, 93, {{name, generation, 0}}),
        make_frame<ReleaseOperation>(Type::release, 94, {{name, 0, 0}}),
    };
  };
  for (std::size_t which = 0; which < 5; ++which) {
    {
      RawClient client(daemon_.control_path());
      ASSERT_EQ(client.hello().header.status, 0U);
      client.stay_alive(client.attach(worker_recipe(), Access::write));
      const auto opened = client.open("s", 1);
      (void)client.append("s", 1, opened.generation, 100);
      ASSERT_TRUE(client.send(messages(client, opened.generation).at(which)));
    }
    EXPECT_TRUE(eventually([&] {
      return shard_number("/clients") == 1 && leased_contexts() == 0 && used_bytes() == 0;
    })) << "message "
        << which;
  }
  // What the dead had ordered arrives for nobody, and is in transit until then.
  EXPECT_TRUE(eventually([&] { return status_number(daemon_, "/waiting_grants") == 0; }));
  EXPECT_EQ(whole_budget_refusal(keeper), "");
}

class ClaimsOnMuchMemory : public Claims {
 protected:
  ClaimsOnMuchMemory() : Claims({"--max-bytes=256M", "--chunk-tokens=256"}) {}

  // Processor time of the loop that serves everybody, from before a holder of so many sessions is
  // killed until nothing of it is booked any more.
  std::chrono::nanoseconds cost_of_a_holders_end(std::uint32_t sessions,
                                                 std::uint32_t tokens_each) const {
    Turns turns;
    ForkedChild holder([&] {
      KvWorker worker(daemon_.control_path());
      for (std::uint32_t i = 0; i < sessions; ++i) {
        const std::string name = "s" + std::to_string(i);
        if (!worker.open(name, 1)) return 1;
        if (!worker.context(name).reserve(TokenCount{tokens_each})) return 2;
      }
      turns.arrive_and_wait();
      return 0;
    });
    EXPECT_TRUE(turns.wait_for_child()) << holder.exit_code();
    EXPECT_GE(used_bytes(), std::uint64_t{sessions} * tokens_each * 128);
    const auto before = processor_time_of_first_thread(daemon_.pid());
    holder.kill_and_wait();
    int asked = 0;
    EXPECT_TRUE(eventually([&] {
      std::this_thread::sleep_for(milliseconds(20));
      ++asked;
      return used_bytes() == 0;
    }));
    const auto after = processor_time_of_first_thread(daemon_.pid());
    while (asked-- > 0) (void)used_bytes();  // what asking costs is not of the end
    return after - before - (processor_time_of_first_thread(daemon_.pid()) - after);
  }
};

// FR-008: the end of a client that held most of the memory stalls none of the others: it takes
// hardly more of the loop that serves them than the end of one that held next to nothing.
TEST_F(ClaimsOnMuchMemory, TheEndOfTheirHolderStallsNobody) {
  constexpr std::uint32_t kSessions = 64;
  constexpr std::uint64_t kHeld = std::uint64_t{224} << 20;
  if (processor_time_of_first_thread(daemon_.pid()).count() == 0) {
    GTEST_SKIP() << "this kernel does not tell the processor time of a thread";
  }
  KvWorker other(daemon_.control_path());
  const auto cost_of_little = cost_of_a_holders_end(1, 1);
  const auto cost_of_much = cost_of_a_holders_end(kSessions, kHeld / kSessions / 128);
  std::printf("the end of a holder of little took %.1f ms of the loop, of much %.1f ms\n",
              milliseconds_of(cost_of_little), milliseconds_of(cost_of_much));
  EXPECT_LE(cost_of_much,
            std::max(cost_of_little, std::chrono::nanoseconds(0)) + milliseconds(100));
  ASSERT_TRUE(other.open("next", 1));
  EXPECT_EQ(why(other.context("next").reserve(TokenCount{kHeld / 128})), "");
}

class ClaimsOfThousands : public Claims {
 protected:
  // More than the housekeeping alone would end within a test's patience, a piece a second.
  static constexpr std::uint32_t kSessions = 20'000;

  ClaimsOfThousands() : Claims({"--session-cap=" + std::to_string(kSessions + 8)}) {}
};

// FR-008: leases end a piece a turn, one turn after the other, until the page is free.
TEST_F(ClaimsOfThousands, EndInTurnsOfTheirOwn) {
  Turns turns;
  ForkedChild holder([&] {
    KvWorker worker(daemon_.control_path());
    for (std::uint32_t i = 0; i < kSessions; ++i) {
      if (!worker.open("s" + std::to_string(i), 1)) return 1;
    }
    turns.arrive_and_wait();
    return 0;
  });
  ASSERT_TRUE(turns.wait_for_child()) << holder.exit_code();
  KvWorker other(daemon_.control_path());
  holder.kill_and_wait();
  const std::string taken_over = "s" + std::to_string(kSessions - 1);
  ASSERT_EQ(why(other.open(taken_over, 1)), "");
  EXPECT_TRUE(eventually([&] { return shard_number("/clients") == 1; }));
  EXPECT_EQ(why(other.append(taken_over, 1)), "") << "that lease was not the gone one's any more";
}

}  // namespace
}  // namespace hotkv::testing
