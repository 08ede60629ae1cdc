#include "tests/support/under_fire.hpp"

#include <algorithm>
#include <mutex>
#include <sstream>

#include "tests/support/fork_gate.hpp"

namespace hotkv::testing {

HonestWorker::HonestWorker(const std::string& control_path)
    : worker_(control_path, worker_recipe({0, 1}, "bystander")), thread_([this] { run(); }) {}

HonestWorker::~HonestWorker() {
  stop();
}

void HonestWorker::stop() {
  ending_ = true;
  if (thread_.joinable()) thread_.join();
}

bool HonestWorker::goes_on() const {
  const std::uint64_t wanted = rounds_ + 3;
  const auto end = std::chrono::steady_clock::now() + std::chrono::seconds(10);
  while (rounds_ < wanted && std::chrono::steady_clock::now() < end) {
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
  return rounds_ >= wanted;
}

void HonestWorker::run() {
  while (!ending_) {
    {
      const std::lock_guard working(fork_gate());
      run_round();
    }
    ++rounds_;
    std::this_thread::sleep_for(std::chrono::milliseconds(2));
  }
}

void HonestWorker::run_round() {
  constexpr std::uint32_t kTokens = 40;  // two chunks and a half
  constexpr std::uint32_t kKept = 17;
  const std::uint64_t epoch = rounds_ + 1;
  const auto check = [&](std::uint32_t length) {
    const auto view = worker_.client().resolve(SessionId::from("honest").value(), Epoch{epoch},
                                               TokenCount{length});
    if (!view) {
      ++failed_calls_;
    } else {
      wrong_bytes_ += testing::wrong_bytes(worker_.client().recipe(), "honest", epoch, *view);
    }
  };
  if (!worker_.open("honest", epoch) || !worker_.append("honest", kTokens)) {
    ++failed_calls_;
    return;
  }
  check(kTokens);
  if (!worker_.context("honest").truncate(TokenCount{kKept})) ++failed_calls_;
  check(kKept);
  if (!worker_.append("honest", 1)) ++failed_calls_;
  check(kKept + 1);
  if (!worker_.context("honest").release()) ++failed_calls_;
  worker_.drop("honest");
}

void UnderFire::SetUp() {
  begin_ = std::chrono::steady_clock::now();
  ASSERT_TRUE(daemon_.wait_ready()) << daemon_.err();
  honest_ = std::make_unique<HonestWorker>(daemon_.control_path());
}

void UnderFire::TearDown() {
  ASSERT_NE(honest_, nullptr);
  EXPECT_TRUE(honest_->goes_on()) << daemon_.err();
  honest_->stop();
  EXPECT_EQ(honest_->wrong_bytes(), 0U);
  EXPECT_EQ(honest_->failed_calls(), 0U);
  EXPECT_EQ(broken_invariant(daemon_), "");
  const auto seconds =
      std::chrono::duration_cast<std::chrono::seconds>(std::chrono::steady_clock::now() - begin_);
  constexpr std::size_t kLinesOfStartAndEnd = 20;
  EXPECT_LE(log_lines(), kLinesOfStartAndEnd + log_lines_per_second_max_ *
                                                   (static_cast<std::size_t>(seconds.count()) + 1))
      << daemon_.err();
  EXPECT_EQ(daemon_.stop(), 0) << daemon_.err();
}

std::size_t UnderFire::log_lines(const std::string& text) const {
  std::istringstream lines(daemon_.err());
  std::size_t count = 0;
  for (std::string line; std::getline(lines, line);) count += line.find(text) != std::string::npos;
  return count;
}

}  // namespace hotkv::testing
