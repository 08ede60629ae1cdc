#pragma once
// A daemon with an honest worker beside whatever a test does to it.

#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <cstdint>
#include <memory>
#include <string>
#include <thread>

#include "tests/support/daemon_process.hpp"
#include "tests/support/kv_worker.hpp"

namespace hotkv::testing {

// A worker with a shard of its own ("bystander") that opens, appends, reads back every byte, rolls
// back and releases, round after round in a thread, until it is stopped.
class HonestWorker {
 public:
  explicit HonestWorker(const std::string& control_path);
  ~HonestWorker();
  HonestWorker(const HonestWorker&) = delete;
  HonestWorker& operator=(const HonestWorker&) = delete;

  // Whether it gets through three more rounds within ten seconds.
  [[nodiscard]] bool goes_on() const;
  void stop();

  [[nodiscard]] std::uint64_t rounds() const { return rounds_; }
  // Bytes that were not the pattern's, and calls that were refused or missed.
  [[nodiscard]] std::uint64_t wrong_bytes() const { return wrong_bytes_; }
  [[nodiscard]] std::uint64_t failed_calls() const { return failed_calls_; }

 private:
  void run();
  void run_round();

  KvWorker worker_;
  std::atomic<std::uint64_t> rounds_ = 0;
  std::atomic<std::uint64_t> wrong_bytes_ = 0;
  std::atomic<std::uint64_t> failed_calls_ = 0;
  std::atomic<bool> ending_ = false;
  std::thread thread_;
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
