#include "tests/fault/crash_matrix.hpp"

#include <signal.h>
#include <unistd.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <thread>
#include <utility>
#include <vector>

#include "tests/support/at_fault_point.hpp"
#include "tests/support/forked_child.hpp"

namespace hotkv::testing {
namespace {

constexpr std::uint32_t kUnpublished = 7;  // the version of bytes that are never published
constexpr std::chrono::seconds kPatience{20};
constexpr std::chrono::milliseconds kMargin{10};

void append(std::vector<double>& all, const std::vector<double>& more) {
  all.insert(all.end(), more.begin(), more.end());
}

}  // namespace

CrashMatrix::CrashMatrix(std::uint64_t chunks, std::filesystem::path group)
    : chunks_(chunks),
      daemon_({.flags = {"--max-bytes=" + std::to_string(chunks * 4) + "K", "--hugepages=off",
                         "--chunk-tokens=16", "--session-cap=16384"},
               .group = std::move(group)}) {}

void CrashMatrix::measure(unsigned number, const std::string& crashed,
                          const std::function<void()>& struck, int times) {
  row_ = {.number = number, .crashed = crashed};
  for (int time = 0; time < times; ++time) {
    SCOPED_TRACE(time);
    session_ = "struck-" + std::to_string(time);
    others_.emplace(daemon_.control_path());
    ASSERT_TRUE(eventually([&] { return others_->answered() >= 3; })) << daemon_.err();
    struck();
    if (HasFatalFailure()) return;
    const std::uint64_t answered = others_->answered();
    ASSERT_TRUE(eventually([&] { return others_->answered() >= answered + 3; })) << daemon_.err();
    // The last moments would reach into the crash.
    append(row_.others_before, others_->waits(struck_at_ - kBefore, struck_at_ - kMargin));
    append(row_.others_after, others_->waits(struck_at_, struck_at_ + kAfter));
    others_.reset();
    row_.chunks_leaked += chunks_ - chunks_to_be_had();
    EXPECT_EQ(broken_invariant(daemon_), "");
  }
  EXPECT_EQ(daemon_.stop(), 0) << daemon_.err();
  report(row_);
}

void CrashMatrix::strike(const std::function<void()>& crash) {
  std::this_thread::sleep_for(kBefore);
  since_ = struck_at_ = Clock::now();
  crash();
  ++row_.crashes;
}

void CrashMatrix::kill_daemon() {
  daemon_.kill();
  daemon_.start_again();
}

void CrashMatrix::expect_next_grant(KvWorker& worker, Tokens there, std::uint64_t epoch) {
  std::optional<std::uint32_t> found;
  const auto granted = [&] {
    if (!worker.holds(session_) && !worker.open(session_, epoch)) return false;
    found = worker.context(session_).length().value();
    if (worker.append(session_, kChunkTokens)) return true;
    worker.drop(session_);
    return false;
  };
  const auto end = Clock::now() + kPatience;
  while (!granted()) {
    ASSERT_LT(Clock::now(), end) << daemon_.err();
    (void)worker.client().wait_connected(std::chrono::milliseconds(100));
  }
  note_next_grant();
  std::this_thread::sleep_until(struck_at_ + kAfter);
  if (*found != there.either && *found != there.other) {
    const std::uint32_t most = std::max(there.either, there.other);
    *found < most ? row_.tokens_lost += most - *found : row_.unpublished_seen += *found - most;
  }
  expect_right_bytes(worker, epoch);
}

void CrashMatrix::note_next_grant() {
  row_.until_next_grant.push_back(
      std::chrono::duration<double, std::milli>(Clock::now() - since_).count());
}

View CrashMatrix::fill_memory(KvWorker& worker) {
  std::optional<View> held;
  for (;;) {
    // Pinned, so that it is no victim of those beside it.
    const TokenCount length = worker.context(session_).length();
    auto view = worker.client().resolve(struck_session(), worker.context(session_).epoch(), length);
    held.emplace(std::move(view.value()));
    const auto appended = worker.append(session_, kChunkTokens);
    if (appended) continue;
    EXPECT_TRUE(appended.error().is(ErrorCode::budget_exceeded)) << why(appended);
    return std::move(*held);
  }
}

void CrashMatrix::expect_right_bytes(KvWorker& worker, std::uint64_t epoch) {
  const TokenCount whole = worker.context(session_).length();
  const auto view = worker.client().resolve(struck_session(), Epoch{epoch}, whole);
  ASSERT_TRUE(view.has_value()) << view.error().message();
  row_.unpublished_seen += wrong_bytes(worker_recipe(), session_, epoch, *view);
}

void CrashMatrix::release(KvWorker& worker) {
  EXPECT_EQ(why(worker.context(session_).release()), "");
  worker.drop(session_);
}

void CrashMatrix::kill_worker(unsigned number, const std::string& when, const Act& last) {
  measure(number, when, [&] {
    Turns turns;
    ForkedChild victim([&] {
      KvWorker worker(daemon_.control_path());
      if (!begin(worker)) return 1;
      last(worker, turns);
      return 2;
    });
    ASSERT_TRUE(turns.wait_for_child());
    KvWorker next(daemon_.control_path());
    strike([&] { victim.kill_and_wait(); });
    expect_next_grant(next, kAllPublished);
    release(next);
  });
}

void CrashMatrix::kill_asking_worker(unsigned number, const std::string& when, const Act& ask,
                                     Tokens there) {
  measure(number, when, [&] {
    Turns turns;
    ForkedChild victim([&] {
      KvWorker worker(daemon_.control_path());
      if (!begin(worker)) return 1;
      turns.arrive_and_wait();
      const AtFaultPoint die("ask.after-send", [] { ::raise(SIGKILL); });
      ask(worker, turns);
      return 2;
    });
    ASSERT_TRUE(turns.wait_for_child());
    KvWorker next(daemon_.control_path());
    strike([&] {
      turns.go_on();
      EXPECT_EQ(victim.exit_code(), -1);
    });
    expect_next_grant(next, there);
    release(next);
  });
}

bool CrashMatrix::begin(KvWorker& worker) {
  return worker.open(session_, 1) && worker.append(session_, kPublished);
}

std::optional<View> CrashMatrix::begin_and_pin(KvWorker& worker) {
  if (!begin(worker)) return std::nullopt;
  auto view = worker.client().resolve(struck_session(), Epoch{1}, TokenCount{kPublished});
  if (!view) return std::nullopt;
  return std::move(*view);
}

Writer CrashMatrix::begin_to_write(KvWorker& worker) {
  auto writer = worker.context(session_).append(TokenCount{20});
  if (!writer) ::_exit(3);
  worker.fill(session_, 1, *writer, 0, 10, kUnpublished);
  return std::move(*writer);
}

void CrashMatrix::write_on(KvWorker& worker, Writer& writer) const {
  worker.fill(session_, 1, writer, 10, 20, kUnpublished);
}

SessionId CrashMatrix::struck_session() const {
  return SessionId::from(session_).value();
}

std::uint64_t CrashMatrix::chunks_to_be_had() {
  for (const char* model : {"tiny", "bystander"}) {
    EXPECT_TRUE(eventually([&] {
      const auto status = shard_status(daemon_, model);
      return status.is_null() || status.at("clients") == 0;
    }));
  }
  KvWorker worker(daemon_.control_path());
  std::uint64_t chunks = 0;
  EXPECT_TRUE(worker.open("all there is", ++epoch_of_all_));
  auto appended = worker.append("all there is", kChunkTokens);
  for (; appended; appended = worker.append("all there is", kChunkTokens)) ++chunks;
  EXPECT_TRUE(appended.error().is(ErrorCode::budget_exceeded)) << why(appended);
  EXPECT_TRUE(worker.context("all there is").release());
  return chunks;
}

}  // namespace hotkv::testing
