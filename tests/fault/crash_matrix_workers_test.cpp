// The crash matrix, rows of workers that are killed or cut off.

#include <fcntl.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <unistd.h>

#include <chrono>
#include <string>

#include "tests/fault/crash_matrix.hpp"
#include "tests/support/at_fault_point.hpp"
#include "tests/support/cut_off.hpp"
#include "tests/support/forked_child.hpp"

namespace hotkv::testing {
namespace {

// ---- a worker is killed -------------------------------------------------------------------------

TEST_F(CrashMatrix, WorkerKilledIdle) {
  kill_worker(1, "worker killed, idle",
              [](KvWorker&, const Turns& turns) { turns.arrive_and_wait(); });
}

TEST_F(CrashMatrix, WorkerKilledPinned) {
  kill_worker(2, "worker killed, with a view pinned", [this](KvWorker& worker, const Turns& turns) {
    const auto view = worker.client().resolve(struck_session(), Epoch{1}, TokenCount{kPublished});
    if (view) turns.arrive_and_wait();
  });
}

TEST_F(CrashMatrix, WorkerKilledMidGrant) {
  kill_asking_worker(
      3, "worker killed mid-grant: it has asked",
      [this](KvWorker& worker, const Turns&) {
        (void)worker.context(session_).reserve(TokenCount{40});
      },
      kAllPublished);
}

TEST_F(CrashMatrix, WorkerKilledMidWrite) {
  kill_worker(4, "worker killed mid-write", [this](KvWorker& worker, const Turns& turns) {
    Writer writer = begin_to_write(worker);
    const AtFaultPoint stop("write.before-piece", [&] { turns.arrive_and_wait(); });
    write_on(worker, writer);
  });
}

TEST_F(CrashMatrix, WorkerKilledBetweenWriteAndPublish) {
  kill_worker(
      5, "worker killed between write and publish", [this](KvWorker& worker, const Turns& turns) {
        Writer writer = begin_to_write(worker);
        write_on(worker, writer);
        const AtFaultPoint stop("publish.before-exchange", [&] { turns.arrive_and_wait(); });
        (void)writer.publish();
      });
}

TEST_F(CrashMatrix, WorkerKilledMidTruncate) {
  kill_asking_worker(6, "worker killed mid-truncate: it has asked",
                     [this](KvWorker& worker, const Turns&) {
                       (void)worker.context(session_).truncate(TokenCount{20});
                     },
                     {20, kPublished});
}

TEST_F(CrashMatrix, WorkerKilledMidAttach) {
  measure(7, "worker killed mid-attach: it has asked; a new one attaches and is granted room", [&] {
    Turns turns;
    ForkedChild victim([&] {
      turns.arrive_and_wait();
      const AtFaultPoint die("attach.after-send", [] { ::raise(SIGKILL); });
      const KvWorker worker(daemon_.control_path());
      return 2;
    });
    ASSERT_TRUE(turns.wait_for_child());
    {
      KvWorker before(daemon_.control_path());
      ASSERT_TRUE(begin(before));
    }
    strike([&] {
      turns.go_on();
      EXPECT_EQ(victim.exit_code(), -1);
    });
    KvWorker next(daemon_.control_path());
    expect_next_grant(next, kAllPublished);
    release(next);
  });
}

// ---- a worker is cut off ------------------------------------------------------------------------

TEST_F(CrashMatrix, WorkerStopped) {
  measure(10, "worker stopped mid-write (SIGSTOP); a newer epoch is granted room", [&] {
    Turns turns;
    ForkedChild victim([&] {
      KvWorker worker(daemon_.control_path());
      if (!begin(worker)) return 1;
      Writer writer = begin_to_write(worker);
      {
        const AtFaultPoint stop("write.before-piece", [&] { turns.arrive_and_wait(); });
        write_on(worker, writer);
      }
      const auto published = writer.publish();
      return !published && published.error().code == ErrorCode::lease_lost ? 0 : 4;
    });
    ASSERT_TRUE(turns.wait_for_child());
    KvWorker next(daemon_.control_path());
    strike([&] { victim.stop(); });
    {
      const auto stopped =
          next.client().resolve(struck_session(), Epoch{1}, TokenCount{kPublished});
      if (!stopped) row_.tokens_lost += kPublished;
      if (stopped) row_.unpublished_seen += wrong_bytes(worker_recipe(), session_, 1, *stopped);
    }
    expect_next_grant(next, {0, 0}, 2);
    const View all = fill_memory(next);
    ::kill(victim.pid(), SIGCONT);
    turns.go_on();
    EXPECT_EQ(victim.exit_code(), 0) << "its late publish must be refused";
    // Its late stores are in memory of its own.
    row_.unpublished_seen += wrong_bytes(worker_recipe(), session_, 2, all);
    release(next);
  });
}

TEST_F(CrashMatrix, WorkerClosesItsSocketAndLivesOn) {
  measure(11, "worker closes its socket and lives on, with a view pinned", [&] {
    Turns turns;
    ForkedChild victim([&] {
      KvWorker worker = worker_that_stays_away(daemon_.control_path());
      const auto view = begin_and_pin(worker);
      if (!view) return 1;
      turns.arrive_and_wait();
      hang_up_all();
      turns.arrive_and_wait();
      return wrong_bytes(worker_recipe(), session_, 1, *view) == 0 ? 0 : 3;
    });
    ASSERT_TRUE(turns.wait_for_child());
    KvWorker next(daemon_.control_path());
    strike([&] { turns.go_on(); });
    expect_next_grant(next, kAllPublished);
    release(next);
    ASSERT_TRUE(next.open(session_, 2));
    const View all = fill_memory(next);
    ASSERT_TRUE(turns.wait_for_child());
    turns.go_on();
    EXPECT_EQ(victim.exit_code(), 0) << "its view must be whole although all was released";
    release(next);
  });
}

TEST_F(CrashMatrix, WorkerExecs) {
  measure(12, "worker execs, with views pinned and a forked child that has its socket", [&] {
    Turns turns, child_turns;
    ForkedChild victim([&] {
      KvWorker worker(daemon_.control_path());
      const auto view = begin_and_pin(worker);
      if (!view) return 1;
      // Copies that the library knows nothing of: its own it closes in a forked child.
      for (const int fd : control_sockets()) (void)::fcntl(fd, F_DUPFD_CLOEXEC, 3);
      if (::fork() == 0) {
        child_turns.arrive_and_wait();
        ::_exit(0);
      }
      turns.arrive_and_wait();
      ::execl("/bin/sleep", "sleep", "60", static_cast<char*>(nullptr));
      return 3;
    });
    ASSERT_TRUE(turns.wait_for_child());
    ASSERT_TRUE(child_turns.wait_for_child());
    KvWorker next(daemon_.control_path());
    strike([&] { turns.go_on(); });
    expect_next_grant(next, kAllPublished);
    const View all = fill_memory(next);  // its view protects nothing any more
    release(next);
    child_turns.go_on();
  });
}

TEST_F(CrashMatrix, WorkerForksAndIsKilled) {
  measure(13, "worker killed, with a view pinned, whose forked child lives on", [&] {
    Turns turns, child_turns;
    ForkedChild victim([&] {
      KvWorker worker(daemon_.control_path());
      const auto view = begin_and_pin(worker);
      if (!view) return 1;
      if (::fork() == 0) {
        child_turns.arrive_and_wait();
        ::_exit(0);
      }
      turns.arrive_and_wait();
      return 3;
    });
    ASSERT_TRUE(turns.wait_for_child());
    ASSERT_TRUE(child_turns.wait_for_child());
    KvWorker next(daemon_.control_path());
    strike([&] { victim.kill_and_wait(); });
    expect_next_grant(next, kAllPublished);
    const View all = fill_memory(next);
    release(next);
    child_turns.go_on();
  });
}

}  // namespace
}  // namespace hotkv::testing
