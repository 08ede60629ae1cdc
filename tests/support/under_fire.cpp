#include "tests/support/under_fire.hpp"

#include <algorithm>
#include <sstream>
#include <thread>
#include <utility>

namespace hotkv::testing {

HonestWorker::HonestWorker(const std::string& control_path)
    : process_([&] { return work(control_path, figures()); }) {}

HonestWorker::~HonestWorker() {
  stop();
}

void HonestWorker::stop() {
  if (std::exchange(stopped_, true)) return;
  figures().ending = true;
  ended_in_order_ = process_.exit_code() == 0;
}

bool HonestWorker::goes_on() const {
  const std::uint64_t wanted = rounds() + 3;
  return eventually([&] { return rounds() >= wanted; });
}

int HonestWorker::work(const std::string& control_path, Figures& figures) {
  KvWorker worker(control_path, worker_recipe({0, 1}, "bystander"));
  while (!figures.ending) {
    work_a_round(worker, figures);
    ++figures.rounds;
    std::this_thread::sleep_for(std::chrono::milliseconds(2));
  }
  return 0;
}

void HonestWorker::work_a_round(KvWorker& worker, Figures& figures) {
  constexpr std::uint32_t kTokens = 40;  // two chunks and a half
  constexpr std::uint32_t kKept = 17;
  const std::uint64_t epoch = figures.rounds + 1;
  const auto check = [&](std::uint32_t length) {
    const auto view = worker.client().resolve(SessionId::from("honest").value(), Epoch{epoch},
                                              TokenCount{length});
    if (!view) {
      ++figures.failed_calls;
    } else {
      figures.wrong_bytes += testing::wrong_bytes(worker.client().recipe(), "honest", epoch, *view);
    }
  };
  if (!worker.open("honest", epoch) || !worker.append("honest", kTokens)) {
    ++figures.failed_calls;
    return;
  }
  check(kTokens);
  if (!worker.context("honest").truncate(TokenCount{kKept})) ++figures.failed_calls;
  check(kKept);
  if (!worker.append("honest", 1)) ++figures.failed_calls;
  check(kKept + 1);
  if (!worker.context("honest").release()) ++figures.failed_calls;
  worker.drop("honest");
}

void UnderFire::SetUp() {
  begin_ = std::chrono::steady_clock::now();
  ASSERT_TRUE(daemon_.wait_ready()) << daemon_.err();
  honest_ = std::make_unique<HonestWorker>(daemon_.control_path());
  // Its shard is the daemon's first.
  ASSERT_TRUE(eventually([&] { return honest_->rounds() >= 1; })) << daemon_.err();
}

void UnderFire::TearDown() {
  ASSERT_NE(honest_, nullptr);
  EXPECT_TRUE(honest_->goes_on()) << daemon_.err();
  honest_->stop();
  EXPECT_TRUE(honest_->ended_in_order());
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
