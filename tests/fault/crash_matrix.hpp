#pragma once
// The crash matrix: who dies when, and what it costs. Each test is a row, done a few times over;
// the promises are checked, the times only reported.

#include <gtest/gtest.h>

#include <chrono>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <optional>
#include <string>

#include <hotkv/types.hpp>

#include "tests/fault/crash_row.hpp"
#include "tests/support/bystanders.hpp"
#include "tests/support/daemon_process.hpp"
#include "tests/support/kv_worker.hpp"
#include "tests/support/sanitized.hpp"

namespace hotkv::testing {

class CrashMatrix : public ::testing::Test {
 protected:
  using Clock = std::chrono::steady_clock;

  static constexpr int kTimes = kIsSanitized ? 1 : 3;
  static constexpr std::uint32_t kChunkTokens = 16;
  static constexpr std::uint32_t kPublished = 40;  // two chunks and a half
  static constexpr std::chrono::milliseconds kBefore{150}, kAfter{350};

  // How much of a context may be there after a crash: what was asked for may be done or not done.
  struct Tokens {
    std::uint32_t either, other;
  };
  static constexpr Tokens kAllPublished{kPublished, kPublished};

  // A chunk is a page.
  explicit CrashMatrix(std::uint64_t chunks = 64, std::filesystem::path group = {});
  void SetUp() override { ASSERT_TRUE(daemon_.wait_ready()) << daemon_.err(); }

  // Several times: `struck` prepares, calls strike() and says when it is whole again; then
  // everybody goes, and all memory must be there.
  void measure(unsigned number, const std::string& crashed, const std::function<void()>& struck,
               int times = kTimes);
  void strike(const std::function<void()>& crash);
  void kill_daemon();

  // Insists on a grant in the context that was struck, and notes how long after `since_` it came.
  // What the context had before must be what it may have, and right, and is looked at together with
  // what was appended now. The worker has the context afterwards.
  void expect_next_grant(KvWorker& worker, Tokens there, std::uint64_t epoch = 1);
  void note_next_grant();
  // Appends to the context until nothing is left of the budget: whatever is free is written over. A
  // view of it all.
  [[nodiscard]] View fill_memory(KvWorker& worker);
  // All that is published of a context that this test's workers wrote has the right bytes.
  void expect_right_bytes(KvWorker& worker, std::uint64_t epoch);
  void release(KvWorker& worker);

  using Act = std::function<void(KvWorker&, const Turns&)>;
  // A worker that has published kPublished tokens, does `last` and is killed where it waits in it.
  void kill_worker(unsigned number, const std::string& when, const Act& last);
  // The same, but it dies in what it does: once after it has sent a request, at that moment.
  void kill_asking_worker(unsigned number, const std::string& when, const Act& ask, Tokens there);
  [[nodiscard]] bool begin(KvWorker& worker);
  // The same, with a view of it that is pinned; nothing where that failed.
  [[nodiscard]] std::optional<View> begin_and_pin(KvWorker& worker);
  // Writes some of what it never publishes: 10 of 20 tokens.
  [[nodiscard]] Writer begin_to_write(KvWorker& worker);
  // Writes the others.
  void write_on(KvWorker& worker, Writer& writer) const;
  [[nodiscard]] SessionId struck_session() const;

  std::uint64_t chunks_;  // that the budget is
  DaemonProcess daemon_;
  std::string session_;  // the context's that is struck; another one each time
  CrashRow row_{};
  Clock::time_point struck_at_;
  Clock::time_point since_;  // when a next grant began to be possible: struck_at_, if not set

 private:
  // Once nobody is there.
  [[nodiscard]] std::uint64_t chunks_to_be_had();

  std::optional<Bystanders> others_;
  std::uint64_t epoch_of_all_ = 0;
};

}  // namespace hotkv::testing
