#pragma once
// A daemon with an honest worker beside whatever a test does to it.

#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <cstdint>
#include <memory>
#include <string>

#include "tests/support/daemon_process.hpp"
#include "tests/support/forked_child.hpp"
#include "tests/support/kv_worker.hpp"
#include "tests/support/shared_memory_of.hpp"

namespace hotkv::testing {

// A worker process with a shard of its own ("bystander") that opens, appends, reads back every
// byte, rolls back and releases, round after round, until it is stopped. A process and not a
// thread, so that tests beside it can fork.
class HonestWorker {
 public:
  // Forks: to be made before the test has threads.
  explicit HonestWorker(const std::string& control_path);
  ~HonestWorker();
  HonestWorker(const HonestWorker&) = delete;
  HonestWorker& operator=(const HonestWorker&) = delete;

  // Whether it gets through three more rounds within twenty seconds.
  [[nodiscard]] bool goes_on() const;
  // Returns once its process has ended, in order or not.
  void stop();

  [[nodiscard]] std::uint64_t rounds() const { return figures().rounds; }
  // Bytes that were not the pattern's, and calls that were refused or missed.
  [[nodiscard]] std::uint64_t wrong_bytes() const { return figures().wrong_bytes; }
  [[nodiscard]] std::uint64_t failed_calls() const { return figures().failed_calls; }
  // After stop(): whether the process ended by itself.
  [[nodiscard]] bool ended_in_order() const { return ended_in_order_; }

 private:
  struct Figures {  // in memory of both processes
    std::atomic<std::uint64_t> rounds = 0;
    std::atomic<std::uint64_t> wrong_bytes = 0;
    std::atomic<std::uint64_t> failed_calls = 0;
    std::atomic<bool> ending = false;
  };
  static int work(const std::string& control_path, Figures& figures);
  static void work_a_round(KvWorker& worker, Figures& figures);
  [[nodiscard]] Figures& figures() const { return *memory_; }

  SharedMemoryOf<Figures> memory_;
  ForkedChild process_;
  bool stopped_ = false;
  bool ended_in_order_ = false;
};

// After each test: the honest worker goes on and was served rightly throughout, the daemon's tables
// are sound, it logged a bounded number of lines, and it ends in order.
class UnderFire : public ::testing::Test {
 protected:
  explicit UnderFire(DaemonOptions options = {.flags = {"--max-bytes=16M", "--hugepages=off",
                                                        "--chunk-tokens=16"}})
      : daemon_(std::move(options)) {}
  void SetUp() override;
  void TearDown() override;

  // Lines of its log so far that hold a text.
  [[nodiscard]] std::size_t log_lines(const std::string& text = "") const;

  DaemonProcess daemon_;
  std::unique_ptr<HonestWorker> honest_;
  // Five lines of a kind and second; a test that runs into several kinds may raise it.
  std::size_t log_lines_per_second_max_ = 15;

 private:
  std::chrono::steady_clock::time_point begin_;
};

}  // namespace hotkv::testing
