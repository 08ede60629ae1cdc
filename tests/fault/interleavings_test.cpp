// The interleavings that would hurt, each forced: the client library is stopped between two steps
// (fault points, or a worker that waits) while other workers and the real daemon go on. Each ends
// with right bytes for everybody and every invariant of the daemon whole.

#include <fcntl.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <algorithm>
#include <functional>
#include <optional>
#include <string>

#include "tests/support/at_fault_point.hpp"
#include "tests/support/cut_off.hpp"
#include "tests/support/kv_worker.hpp"

namespace hotkv::testing {
namespace {

SessionId session_id(std::string_view text) {
  return SessionId::from(text).value();
}

using At = AtFaultPoint;

// 12 chunks of 16 tokens: whatever is freed is reused at once.
class Interleaving : public ::testing::Test {
 protected:
  void SetUp() override { ASSERT_TRUE(daemon.wait_ready()) << daemon.err(); }
  void TearDown() override {
    EXPECT_EQ(broken_invariant(daemon), "");
    EXPECT_EQ(daemon.stop(), 0) << daemon.err();
  }

  // Appends to other sessions until every chunk that is free has been written over.
  void reuse_all_memory(KvWorker& worker) {
    for (int i = 0; i < 8; ++i) {
      const std::string name = "filler-" + std::to_string(fillers++);
      ASSERT_TRUE(worker.open(name, 1));
      const auto written = worker.append(name, 32, 1000);
      if (!written) {
        ASSERT_TRUE(written.error().is(ErrorCode::budget_exceeded)) << why(written);
      }
    }
  }
  void expect_content(KvWorker& worker, std::string_view session, std::uint64_t epoch,
                      std::uint32_t length, const std::vector<std::uint32_t>& versions) {
    const auto view =
        worker.client().resolve(session_id(session), Epoch{epoch}, TokenCount{length});
    ASSERT_TRUE(view.has_value()) << view.error().message();
    EXPECT_EQ(wrong_bytes(worker.client().recipe(), session, epoch, *view, versions), 0u);
  }
  static std::vector<std::uint32_t> all(std::uint32_t count, std::uint32_t version) {
    return std::vector<std::uint32_t>(count, version);
  }

  // A writer of "a" is stopped in the middle of its copy; `meanwhile` ends its generation and
  // others take the memory. Its late stores must hurt nobody, and its publish must fail.
  void stop_writer_in_its_copy(const std::function<void(KvWorker& other)>& meanwhile) {
    KvWorker late(daemon.control_path());
    KvWorker other(daemon.control_path());
    ASSERT_TRUE(late.open("a", 1));
    ASSERT_TRUE(late.append("a", 20, 1));
    auto writer = late.context("a").append(TokenCount{30});
    ASSERT_TRUE(writer.has_value()) << why(writer);
    late.fill("a", 1, *writer, 0, 10, 2);
    {
      const At stop("write.before-piece", [&] {
        meanwhile(other);
        reuse_all_memory(other);
      });
      late.fill("a", 1, *writer, 10, 30, 2);  // the late stores
    }
    const auto published = writer->publish();
    ASSERT_FALSE(published.has_value());
    EXPECT_EQ(published.error().code, ErrorCode::lease_lost);
    // Whoever got memory meanwhile reads its own bytes.
    for (int i = 0; i < fillers; ++i) {
      const std::string name = "filler-" + std::to_string(i);
      const auto view = other.client().get(session_id(name), Epoch{1});
      if (!view) continue;
      EXPECT_EQ(wrong_bytes(other.client().recipe(), name, 1, *view, all(32, 1000)), 0u) << name;
    }
    // Its claim gone, its memory can be had.
    writer = std::unexpected(Refusal(published.error()));
    reuse_all_memory(other);
  }

  DaemonProcess daemon{
      {.flags = {"--max-bytes=48K", "--hugepages=off", "--chunk-tokens=16", "--session-cap=16"}}};
  int fillers = 0;
};

TEST_F(Interleaving, WriterStoppedInItsCopyWhileANewerEpochTakesOver) {
  std::optional<KvWorker> newer;
  stop_writer_in_its_copy([&](KvWorker&) {
    newer.emplace(daemon.control_path());
    ASSERT_TRUE(newer->open("a", 2));
    ASSERT_TRUE(newer->append("a", 5, 3));
    expect_content(*newer, "a", 2, 5, all(5, 3));
  });
}

TEST_F(Interleaving, WriterStoppedInItsCopyWhileItIsEvicted) {
  stop_writer_in_its_copy([&](KvWorker& other) {
    // A pinned context is never a victim: the writer itself protects it from the budget.
    reuse_all_memory(other);
    EXPECT_TRUE(other.client().get(session_id("a"), Epoch{1}).has_value());
    ASSERT_TRUE(other.client().release(session_id("a"), Epoch{1}));
  });
}

TEST_F(Interleaving, ContextEvictedBetweenGrantAndPin) {
  // Granted and not yet pinned it is an ordinary victim; the writer must find that out by itself.
  KvWorker late(daemon.control_path());
  KvWorker other(daemon.control_path());
  ASSERT_TRUE(late.open("a", 1));
  ASSERT_TRUE(late.append("a", 20, 1));
  std::expected<Writer, Refusal> writer = std::unexpected(Refusal(Error{}));
  ASSERT_TRUE(late.context("a").reserve(TokenCount{40}));
  {
    // The head has not been looked at again: everything is taken away before the pin counts.
    ASSERT_TRUE(other.open("big", 1));
    ASSERT_TRUE(other.append("big", 12 * 16, 7)) << "evicts everything";
    writer = late.context("a").append(TokenCount{30});
  }
  ASSERT_FALSE(writer.has_value());
  EXPECT_TRUE(writer.error().is(MissReason::evicted_lru)) << why(writer);
  expect_content(other, "big", 1, 12 * 16, all(12 * 16, 7));
}

TEST_F(Interleaving, ContextEvictedBetweenTheWritersPinAndItsCheck) {
  KvWorker late(daemon.control_path());
  KvWorker other(daemon.control_path());
  ASSERT_TRUE(late.open("a", 1));
  ASSERT_TRUE(late.append("a", 20, 1));
  ASSERT_TRUE(late.context("a").reserve(TokenCount{12}));
  std::expected<Writer, Refusal> writer = std::unexpected(Refusal(Error{}));
  {
    const At stop("append.between-pin-and-confirm",
                  [&] { ASSERT_TRUE(other.client().release(session_id("a"), Epoch{1})); });
    writer = late.context("a").append(TokenCount{12});
  }
  ASSERT_FALSE(writer.has_value());
  EXPECT_TRUE(writer.error().is(MissReason::released)) << why(writer);
  reuse_all_memory(other);
}

TEST_F(Interleaving, WriterStoppedInItsCopyWhileItIsReleased) {
  stop_writer_in_its_copy([&](KvWorker& other) {
    ASSERT_TRUE(other.client().release(session_id("a"), Epoch{1}));
    EXPECT_EQ(other.client().get(session_id("a"), Epoch{1}).error().reason, MissReason::released);
  });
}

TEST_F(Interleaving, WriterStoppedInItsCopyWhileAnotherWorkerTakesOver) {
  // The holder hangs up but lives and writes on; another worker takes the lease over.
  Turns turns;
  ForkedChild late([&] {
    KvWorker worker = worker_that_stays_away(daemon.control_path());
    if (!worker.open("a", 1) || !worker.append("a", 20, 1)) return 1;
    auto writer = worker.context("a").append(TokenCount{30});
    if (!writer) return 2;
    worker.fill("a", 1, *writer, 0, 10, 2);
    hang_up_all();
    turns.arrive_and_wait();
    worker.fill("a", 1, *writer, 10, 30, 2);
    const auto published = writer->publish();
    if (published || published.error().code != ErrorCode::lease_lost) return 3;
    turns.arrive_and_wait();
    return 0;
  });
  ASSERT_TRUE(turns.wait_for_child());
  KvWorker other(daemon.control_path());
  while (!other.open("a", 1)) {  // until the daemon has seen the hang-up
  }
  EXPECT_EQ(other.context("a").length(), TokenCount{20});
  ASSERT_TRUE(other.append("a", 30, 3));
  turns.go_on();
  ASSERT_TRUE(turns.wait_for_child());
  std::vector<std::uint32_t> versions = all(20, 1);
  versions.resize(50, 3);
  expect_content(other, "a", 1, 50, versions);
  turns.go_on();
  EXPECT_EQ(late.exit_code(), 0);
}

TEST_F(Interleaving, TwoTruncatesInARowUnderAReaderOfTheOldestGeneration) {
  KvWorker worker(daemon.control_path());
  KvWorker reader(daemon.control_path(), worker_recipe(), Access::read);
  ASSERT_TRUE(worker.open("a", 1));
  ASSERT_TRUE(worker.append("a", 40, 1));
  const auto oldest = reader.client().resolve(session_id("a"), Epoch{1}, TokenCount{40});
  ASSERT_TRUE(oldest.has_value());
  ASSERT_TRUE(worker.context("a").truncate(TokenCount{30}));
  ASSERT_TRUE(worker.context("a").truncate(TokenCount{10}));
  ASSERT_TRUE(worker.append("a", 20, 2));
  reuse_all_memory(worker);
  EXPECT_EQ(wrong_bytes(worker_recipe(), "a", 1, *oldest, all(40, 1)), 0u);
  std::vector<std::uint32_t> versions = all(10, 1);
  versions.resize(30, 2);
  const auto now = worker.client().get(session_id("a"), Epoch{1});
  if (now) {
    EXPECT_EQ(wrong_bytes(worker_recipe(), "a", 1, *now, versions), 0u);
  }
}

TEST_F(Interleaving, TruncateThenAppendToTheSameLengthUnderAReader) {
  KvWorker worker(daemon.control_path());
  KvWorker reader(daemon.control_path(), worker_recipe(), Access::read);
  ASSERT_TRUE(worker.open("a", 1));
  ASSERT_TRUE(worker.append("a", 25, 1));
  const auto before = reader.client().resolve(session_id("a"), Epoch{1}, TokenCount{25});
  ASSERT_TRUE(before.has_value());
  ASSERT_TRUE(worker.context("a").truncate(TokenCount{18}));
  ASSERT_TRUE(worker.append("a", 7, 2));
  const auto after = reader.client().resolve(session_id("a"), Epoch{1}, TokenCount{25});
  ASSERT_TRUE(after.has_value());
  EXPECT_EQ(wrong_bytes(worker_recipe(), "a", 1, *before, all(25, 1)), 0u);
  std::vector<std::uint32_t> versions = all(18, 1);
  versions.resize(25, 2);
  EXPECT_EQ(wrong_bytes(worker_recipe(), "a", 1, *after, versions), 0u);
}

// At each place between two of a reader's loads the slot is retired and reopened by another session
// whose bytes are others, at the same length.
class ReaderBetweenItsLoads : public Interleaving,
                              public ::testing::WithParamInterface<const char*> {};

TEST_P(ReaderBetweenItsLoads, WhileTheSlotIsRetiredAndReopened) {
  KvWorker worker(daemon.control_path());
  KvWorker reader(daemon.control_path(), worker_recipe(), Access::read);
  ASSERT_TRUE(worker.open("a", 1));
  ASSERT_TRUE(worker.append("a", 20, 1));
  std::expected<View, CacheMiss> view = std::unexpected(
      CacheMiss{session_id("a"), Epoch{1}, {}, MissReason::unknown_session, {}, {}, {}, {}});
  {
    const At stop(GetParam(), [&] {
      ASSERT_TRUE(worker.client().release(session_id("a"), Epoch{1}));
      ASSERT_TRUE(worker.open("b", 1));
      ASSERT_TRUE(worker.append("b", 20, 2));
    });
    view = reader.client().resolve(session_id("a"), Epoch{1}, TokenCount{20});
  }
  ASSERT_FALSE(view.has_value());
  EXPECT_EQ(view.error().reason, MissReason::released);
  expect_content(worker, "b", 1, 20, all(20, 2));
}

TEST_P(ReaderBetweenItsLoads, WhileTheSameSessionIsReopenedWithOtherBytes) {
  KvWorker worker(daemon.control_path());
  KvWorker reader(daemon.control_path(), worker_recipe(), Access::read);
  ASSERT_TRUE(worker.open("a", 1));
  ASSERT_TRUE(worker.append("a", 20, 1));
  {
    const At stop(GetParam(), [&] {
      ASSERT_TRUE(worker.client().release(session_id("a"), Epoch{1}));
      ASSERT_TRUE(worker.open("a", 1));
      ASSERT_TRUE(worker.append("a", 20, 2));
    });
    const auto view = reader.client().resolve(session_id("a"), Epoch{1}, TokenCount{20});
    ASSERT_TRUE(view.has_value()) << view.error().message();
    EXPECT_EQ(wrong_bytes(worker_recipe(), "a", 1, *view, all(20, 2)), 0u);  // new, and all of it
  }
}

INSTANTIATE_TEST_SUITE_P(Points, ReaderBetweenItsLoads,
                         ::testing::Values("resolve.between-head-and-id", "resolve.before-pin",
                                           "resolve.between-pin-and-confirm",
                                           "confirm-pin.between-length-and-head"),
                         [](const auto& test) {
                           std::string name = test.param;
                           std::erase_if(name, [](char c) { return c == '.' || c == '-'; });
                           return name;
                         });

TEST_F(Interleaving, APublishRacingATakeOverIsNeverAcknowledgedAndLost) {
  // The holder hangs up and lives; it publishes right before, or right after, it is taken over.
  for (const bool publish_first : {true, false}) {
    const std::string session = publish_first ? "first" : "second";
    Turns turns;
    ForkedChild late([&] {
      KvWorker worker = worker_that_stays_away(daemon.control_path());
      if (!worker.open(session, 1) || !worker.append(session, 20, 1)) return 1;
      auto writer = worker.context(session).append(TokenCount{5});
      if (!writer) return 2;
      worker.fill(session, 1, *writer, 0, 5, 1);
      hang_up_all();
      if (publish_first && !writer->publish()) return 3;
      {
        // Stopped at the last moment before the exchange.
        std::optional<At> stop;
        if (!publish_first) {
          stop.emplace("publish.before-exchange", [&] { turns.arrive_and_wait(); });
          return writer->publish() ? 4 : 0;  // acknowledged though the take-over was first
        }
      }
      turns.arrive_and_wait();
      return 0;
    });
    ASSERT_TRUE(turns.wait_for_child());
    KvWorker other(daemon.control_path());
    while (!other.open(session, 1)) {
    }
    const std::uint32_t length = publish_first ? 25 : 20;
    EXPECT_EQ(other.context(session).length(), TokenCount{length});
    ASSERT_TRUE(other.append(session, 3, 1));
    turns.go_on();
    EXPECT_EQ(late.exit_code(), 0);
    expect_content(other, session, 1, length + 3, all(length + 3, 1));
  }
}

TEST_F(Interleaving, AWorkerKilledBetweenWriteAndPublishLosesOnlyWhatItNeverPublished) {
  Turns turns;
  ForkedChild victim([&] {
    KvWorker worker(daemon.control_path());
    if (!worker.open("a", 1) || !worker.append("a", 20, 1)) return 1;
    auto writer = worker.context("a").append(TokenCount{10});
    if (!writer) return 2;
    worker.fill("a", 1, *writer, 0, 10, 2);
    const At stop("publish.before-exchange", [&] { turns.arrive_and_wait(); });
    (void)writer->publish();
    return 3;
  });
  ASSERT_TRUE(turns.wait_for_child());
  victim.kill_and_wait();
  KvWorker other(daemon.control_path());
  while (!other.open("a", 1)) {
  }
  EXPECT_EQ(other.context("a").length(), TokenCount{20});
  ASSERT_TRUE(other.append("a", 10, 3));
  std::vector<std::uint32_t> versions = all(20, 1);
  versions.resize(30, 3);
  expect_content(other, "a", 1, 30, versions);
}

TEST_F(Interleaving, AWorkerThatClosesItsSocketAndLivesOnKeepsItsViews) {
  Turns turns;
  ForkedChild survivor([&] {
    KvWorker worker = worker_that_stays_away(daemon.control_path());
    if (!worker.open("a", 1) || !worker.append("a", 40, 1)) return 1;
    const auto view = worker.client().resolve(session_id("a"), Epoch{1}, TokenCount{40});
    if (!view) return 2;
    hang_up_all();
    turns.arrive_and_wait();
    if (wrong_bytes(worker_recipe(), "a", 1, *view, all(40, 1)) != 0) return 3;
    turns.arrive_and_wait();
    return 0;
  });
  ASSERT_TRUE(turns.wait_for_child());
  KvWorker other(daemon.control_path());
  while (!other.open("a", 1)) {
  }
  ASSERT_TRUE(other.context("a").truncate(TokenCount{5}));
  ASSERT_TRUE(other.append("a", 20, 2));
  ASSERT_TRUE(other.context("a").release());
  reuse_all_memory(other);
  turns.go_on();
  ASSERT_TRUE(turns.wait_for_child());
  turns.go_on();
  EXPECT_EQ(survivor.exit_code(), 0);
}

TEST_F(Interleaving, AWorkerThatExecsWhileAForkedChildHoldsTheSocketHoldsNothing) {
  // Neither its pid ends nor its socket; only its mapping does.
  Turns turns;
  ForkedChild worker_process([&] {
    KvWorker worker(daemon.control_path());
    if (!worker.open("a", 1) || !worker.append("a", 20, 1)) return 1;
    const auto view = worker.client().resolve(session_id("a"), Epoch{1}, TokenCount{20});
    auto writer = worker.context("a").append(TokenCount{20});
    if (!view || !writer) return 2;
    // Copies that the library knows nothing of: its own it closes in a forked child.
    for (const int fd : control_sockets()) (void)::fcntl(fd, F_DUPFD_CLOEXEC, 3);
    const pid_t holds_the_socket = ::fork();
    if (holds_the_socket == 0) {
      ::close(STDOUT_FILENO);  // a failed test must not wait for this process
      ::close(STDERR_FILENO);
      turns.arrive_and_wait();  // until the test is done
      ::_exit(0);
    }
    ::execl("/bin/sleep", "sleep", "60", static_cast<char*>(nullptr));
    return 3;
  });
  ASSERT_TRUE(turns.wait_for_child());
  KvWorker other(daemon.control_path());
  while (!other.open("a", 1)) {  // busy until the exec has ended the mapping
  }
  EXPECT_EQ(other.context("a").length(), TokenCount{20});
  // Its pins are gone too: the whole budget can be had.
  ASSERT_TRUE(other.context("a").release());
  ASSERT_TRUE(other.open("big", 1));
  const auto whole_budget = other.append("big", 12 * 16, 7);
  ASSERT_TRUE(whole_budget) << why(whole_budget) << admin_get(daemon, "/status");
  expect_content(other, "big", 1, 12 * 16, all(12 * 16, 7));
  turns.go_on();
}

}  // namespace
}  // namespace hotkv::testing
