// The crash matrix, rows of the daemon's deaths, and of memory that is not there.

#include <gtest/gtest.h>
#include <sys/mman.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <chrono>
#include <filesystem>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "tests/fault/crash_matrix.hpp"
#include "tests/support/eventually.hpp"
#include "tests/support/forked_child.hpp"
#include "tests/support/memory_group.hpp"
#include "tests/support/shared_memory_of.hpp"

namespace hotkv::testing {
namespace {

SessionId session_id(const std::string& text) {
  return SessionId::from(text).value();
}

// ---- the daemon is killed -----------------------------------------------------------------------

TEST_F(CrashMatrix, DaemonKilled) {
  measure(20, "daemon killed, idle", [&] {
    KvWorker worker(daemon_.control_path());
    ASSERT_TRUE(begin(worker));
    strike([&] { kill_daemon(); });
    expect_next_grant(worker, kAllPublished);
    release(worker);
  });
}

TEST_F(CrashMatrix, DaemonKilledWhileAWorkerWrites) {
  measure(21, "daemon killed while a worker writes, which publishes meanwhile", [&] {
    KvWorker worker(daemon_.control_path());
    ASSERT_TRUE(begin(worker));
    auto writer = worker.context(session_).append(TokenCount{20});
    ASSERT_TRUE(writer.has_value());
    worker.fill(session_, 1, *writer, 0, 10);
    strike([&] {
      daemon_.kill();
      worker.fill(session_, 1, *writer, 10, 20);
      EXPECT_TRUE(writer->publish().has_value());
      daemon_.start_again();
    });
    expect_next_grant(worker, {kPublished + 20, kPublished + 20});
    release(worker);
  });
}

TEST_F(CrashMatrix, BothKilled) {
  measure(24, "daemon killed, and a worker mid-write before the next one starts", [&] {
    Turns turns;
    ForkedChild victim([&] {
      KvWorker worker(daemon_.control_path());
      if (!begin(worker)) return 1;
      const Writer writer = begin_to_write(worker);
      turns.arrive_and_wait();
      return 2;
    });
    ASSERT_TRUE(turns.wait_for_child());
    KvWorker next(daemon_.control_path());
    strike([&] {
      daemon_.kill();
      victim.kill_and_wait();
      daemon_.start_again();
    });
    expect_next_grant(next, kAllPublished);
    release(next);
  });
}

class CrashMatrixOfEight : public CrashMatrix {
 protected:
  static constexpr std::size_t kWorkers = 8;
  static constexpr std::uint32_t kLongest = 512;  // then the next epoch begins

  CrashMatrixOfEight() : CrashMatrix(1024) {}

  // What a worker knows of its session.
  struct Appending {
    std::atomic<std::uint64_t> epoch{1};
    std::atomic<std::uint32_t> published{0};
    std::atomic<Clock::rep> last_grant{0};
  };
  struct Shared {  // in memory of all
    std::array<Appending, kWorkers> workers;
    std::atomic<std::uint64_t> tokens_lost{0}, unpublished_seen{0};
    std::atomic<bool> ending{false};
  };
  [[nodiscard]] std::string name(std::size_t worker) const {
    return session_ + "-" + std::to_string(worker);
  }

  // Each append needs a chunk, so a message. What it finds where it opens again must be what it has
  // published.
  int append_chunks(std::size_t index, Shared& shared) {
    Appending& known = shared.workers[index];
    KvWorker worker(daemon_.control_path());
    while (!shared.ending) {
      if (!worker.holds(name(index))) {
        if (!worker.open(name(index), known.epoch)) {
          (void)worker.client().wait_connected(std::chrono::milliseconds(100));
          continue;
        }
        compare(worker.context(name(index)).length().value(), known, shared);
      }
      const auto length = worker.append(name(index), kChunkTokens);
      if (!length) {
        worker.drop(name(index));
        continue;
      }
      known.published = length->value();
      known.last_grant = Clock::now().time_since_epoch().count();
      if (length->value() < kLongest) continue;
      known.published = 0;
      ++known.epoch;
      worker.drop(name(index));
    }
    return 0;
  }
  static void compare(std::uint32_t found, const Appending& known, Shared& shared) {
    const std::uint32_t published = known.published;
    if (found < published) shared.tokens_lost += published - found;
    if (found > published) shared.unpublished_seen += found - published;
  }
};

TEST_F(CrashMatrixOfEight, DaemonKilledWhileEightWorkersAppend) {
  measure(25, "daemon killed while 8 workers append; the last of them is granted room", [&] {
    const SharedMemoryOf<Shared> shared;
    std::vector<ForkedChild> workers;
    for (std::size_t n = 0; n < kWorkers; ++n) {
      workers.emplace_back([&, n] { return append_chunks(n, *shared); });
    }
    const auto all_were_granted_since = [&](Clock::time_point since) {
      return std::ranges::all_of(shared->workers, [&](const Appending& known) {
        return known.last_grant > since.time_since_epoch().count();
      });
    };
    ASSERT_TRUE(eventually([&] { return all_were_granted_since({}); }));
    Clock::time_point dead;
    strike([&] {
      daemon_.kill();
      dead = Clock::now();  // what is granted from here on is of the next one
      daemon_.start_again();
    });
    ASSERT_TRUE(eventually([&] { return all_were_granted_since(dead); })) << daemon_.err();
    note_next_grant();
    std::this_thread::sleep_until(struck_at_ + kAfter);
    shared->ending = true;
    for (ForkedChild& worker : workers) EXPECT_EQ(worker.exit_code(), 0);
    KvWorker reader(daemon_.control_path());
    for (std::size_t n = 0; n < kWorkers; ++n) {
      const Appending& known = shared->workers[n];
      const auto view = reader.client().resolve(session_id(name(n)), Epoch{known.epoch},
                                                TokenCount{0}, LengthMatch::any);
      compare(view ? view->length().value() : 0, known, *shared);
      if (!view) continue;
      row_.unpublished_seen += wrong_bytes(worker_recipe(), name(n), known.epoch, *view);
      (void)reader.client().release(session_id(name(n)), Epoch{known.epoch});
    }
    row_.tokens_lost += shared->tokens_lost;
    row_.unpublished_seen += shared->unpublished_seen;
  });
}

class CrashMatrixOfThousands : public CrashMatrix {
 protected:
  static constexpr std::uint32_t kContexts = kIsSanitized ? 1000 : 10'000;
  static constexpr std::uint32_t kEach = 20;  // two chunks

  CrashMatrixOfThousands() : CrashMatrix(32 * 1024) {}
};

TEST_F(CrashMatrixOfThousands, DaemonKilledWithTenThousandContexts) {
  const auto killed = [&] {
    const auto name = [&](std::uint32_t n) { return session_ + "-" + std::to_string(n); };
    KvWorker worker(daemon_.control_path());
    ASSERT_TRUE(begin(worker));
    for (std::uint32_t n = 0; n < kContexts; ++n) {
      ASSERT_EQ(why(worker.open(name(n), 1)), "");
      ASSERT_EQ(why(worker.append(name(n), kEach)), "");
      if (n % 2 == 0) worker.drop(name(n));  // half of them stay leased
    }
    strike([&] { kill_daemon(); });
    expect_next_grant(worker, kAllPublished);
    release(worker);
    for (std::uint32_t n = 0; n < kContexts; ++n) {
      const auto view = worker.client().resolve(session_id(name(n)), Epoch{1}, TokenCount{kEach});
      if (!view) {
        row_.tokens_lost += kEach;
        continue;
      }
      row_.unpublished_seen += wrong_bytes(worker_recipe(), name(n), 1, *view);
    }
    for (std::uint32_t n = 0; n < kContexts; ++n) {
      EXPECT_TRUE(worker.client().release(session_id(name(n)), Epoch{1}));
      if (n % 2 != 0) worker.drop(name(n));
    }
  };
  measure(26, "daemon killed with " + std::to_string(kContexts) + " contexts", killed,
          kIsSanitized ? 1 : 3);
}

// ---- memory -------------------------------------------------------------------------------------

struct HasGroup {
  static constexpr std::uint64_t kLimit = std::uint64_t{64} << 20;
  static constexpr std::uint64_t kBudget = std::uint64_t{32} << 20;
  std::unique_ptr<MemoryGroup> group_ = MemoryGroup::make(kLimit);
};
class CrashMatrixOfAGroup : protected HasGroup, public CrashMatrix {
 protected:
  static constexpr std::uint32_t kChunksOfAMiB = 256;

  CrashMatrixOfAGroup()
      : CrashMatrix(kBudget / 4096, group_ ? group_->folder() : std::filesystem::path()) {}
  void SetUp() override {
    if (kIsSanitized) GTEST_SKIP() << "a sanitizer's own memory counts in the group as well";
    if (!group_) GTEST_SKIP() << "this user or machine cannot make a cgroup with a limit of memory";
    CrashMatrix::SetUp();
  }
};

TEST_F(CrashMatrixOfAGroup, MemoryIsAtItsLimit) {
  const auto at_the_limit = [&] {
    Turns turns;
    ForkedChild hog([&] {
      if (!group_->join()) return 1;
      turns.arrive_and_wait();
      void* const taken = ::mmap(nullptr, kLimit * 3 / 4, PROT_READ | PROT_WRITE,
                                 MAP_PRIVATE | MAP_ANONYMOUS | MAP_POPULATE, -1, 0);
      if (taken == MAP_FAILED) return 2;
      turns.arrive_and_wait();
      return 0;
    });
    ASSERT_TRUE(turns.wait_for_child());
    KvWorker worker(daemon_.control_path());
    ASSERT_TRUE(begin(worker));
    strike([&] { turns.go_on(); });
    ASSERT_TRUE(turns.wait_for_child());
    const auto append_a_mebibyte = [&] {
      return worker.append(session_, kChunksOfAMiB * kChunkTokens);
    };
    auto appended = append_a_mebibyte();
    while (appended) appended = append_a_mebibyte();
    ASSERT_TRUE(appended.error().is(ErrorCode::memory_unavailable)) << why(appended);
    // What is smaller than the last refusal may still be had.
    while (worker.append(session_, kChunkTokens)) {
    }
    const std::uint32_t published = worker.context(session_).length().value();
    std::this_thread::sleep_until(struck_at_ + kAfter);
    since_ = Clock::now();
    turns.go_on();
    expect_next_grant(worker, {published, published});
    release(worker);
    EXPECT_EQ(hog.exit_code(), 0);
    EXPECT_EQ(group_->kills(), 0U);
  };
  measure(30, "memory group at its limit; room is granted once somebody gives memory back",
          at_the_limit, 1);
}

}  // namespace
}  // namespace hotkv::testing
