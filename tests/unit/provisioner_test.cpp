#include "daemon/platform/provisioner.hpp"

#include <fcntl.h>
#include <signal.h>
#include <sys/stat.h>
#include <unistd.h>

#include <atomic>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <semaphore>
#include <string>
#include <string_view>
#include <thread>
#include <utility>

#include <gtest/gtest.h>

namespace hotkv::platform {
namespace {

namespace fs = std::filesystem;

constexpr std::uint64_t kMiB = std::uint64_t{1} << 20;

class ProvisionerTest : public ::testing::Test {
 protected:
  void SetUp() override {
    char name[] = "/tmp/hotkv-test-XXXXXX";
    ASSERT_NE(::mkdtemp(name), nullptr);
    root_ = name;
    fs::create_directories(root_ / "proc/self");
    set_available(std::uint64_t{1} << 30);
    file_ = std::make_shared<MemoryFile>(*MemoryFile::create("arena", 256 * kMiB));
  }
  void TearDown() override {
    provisioner_.reset();
    fs::remove_all(root_);
  }

  void set_available(std::uint64_t bytes) const {
    std::ofstream(root_ / "proc/meminfo") << "MemAvailable: " << bytes / 1024 << " kB\n";
  }
  void start(ProvisionerOptions options = {}) {
    auto started = Provisioner::start(Headroom({root_, 0, 0}), options, [this] {
      completed_.release();
      if (hold_helper_) helper_may_go_on_.acquire();
    });
    ASSERT_TRUE(started.has_value()) << started.error().message();
    provisioner_ = std::move(*started);
  }
  // The completions there are after the next one.
  std::vector<ProvisionCompletion> wait_for_completion() {
    completed_.acquire();
    return provisioner_->take_completions();
  }
  [[nodiscard]] FileRange range(std::uint64_t offset, std::uint64_t length) const {
    return {file_, {offset, length}};
  }

  fs::path root_;
  std::shared_ptr<const MemoryFile> file_;
  std::counting_semaphore<> completed_{0};
  bool hold_helper_ = false;  // set before start()
  std::counting_semaphore<> helper_may_go_on_{0};
  std::unique_ptr<Provisioner> provisioner_;
};

TEST_F(ProvisionerTest, AllocatesWhatAJobAsksFor) {
  start();
  ASSERT_TRUE(provisioner_->submit({7, {}, {range(0, 20 * kMiB), range(40 * kMiB, 4096)}}));
  const auto completions = wait_for_completion();
  ASSERT_EQ(completions.size(), 1U);
  EXPECT_EQ(completions[0].id, 7U);
  EXPECT_TRUE(completions[0].result.has_value()) << completions[0].result.error().message();
  EXPECT_TRUE(completions[0].punches_done);
  EXPECT_EQ(file_->allocated_bytes(), 20 * kMiB + 4096);
}

TEST_F(ProvisionerTest, PunchesComeBeforeAllocations) {
  ASSERT_TRUE(file_->allocate({0, 8 * kMiB}));
  start();
  ASSERT_TRUE(provisioner_->submit({1, {range(0, 8 * kMiB)}, {range(4 * kMiB, 8 * kMiB)}}));
  EXPECT_TRUE(wait_for_completion().at(0).result.has_value());
  EXPECT_EQ(file_->allocated_bytes(), 8 * kMiB);  // [4, 12); the other order would leave [8, 12)
}

TEST_F(ProvisionerTest, AJobWithoutHeadroomFailsNamingTheNumbersAndTakesNothing) {
  set_available(10 * kMiB);
  start({.slice_bytes = kMiB});
  ASSERT_TRUE(file_->allocate({0, kMiB}));
  ASSERT_TRUE(provisioner_->submit({1, {range(0, kMiB)}, {range(0, 11 * kMiB)}}));
  const auto completions = wait_for_completion();
  ASSERT_EQ(completions.size(), 1U);
  ASSERT_FALSE(completions[0].result.has_value());
  const Error& error = completions[0].result.error();
  EXPECT_EQ(error.code, ErrorCode::memory_unavailable);
  EXPECT_NE(error.cause.find(std::to_string(11 * kMiB)), std::string::npos) << error.cause;
  EXPECT_NE(error.cause.find(std::to_string(10 * kMiB)), std::string::npos) << error.cause;
  EXPECT_NE(error.cause.find("MemAvailable"), std::string::npos) << error.cause;
  EXPECT_TRUE(completions[0].punches_done);
  EXPECT_EQ(file_->allocated_bytes(), 0U);
}

TEST_F(ProvisionerTest, AJobThatFailsHalfWayGivesItsPartBack) {
  start({.slice_bytes = kMiB});
  ASSERT_TRUE(file_->allocate({200 * kMiB, kMiB}));  // not the job's
  ASSERT_TRUE(provisioner_->submit({1, {}, {range(0, 4 * kMiB), range(256 * kMiB, kMiB)}}));
  const auto completions = wait_for_completion();
  EXPECT_EQ(completions.at(0).result.error().code, ErrorCode::invalid_argument);
  EXPECT_EQ(file_->allocated_bytes(), kMiB);
}

TEST_F(ProvisionerTest, AFailedPunchEndsTheJobBeforeItAllocates) {
  start();
  ASSERT_TRUE(provisioner_->submit({1, {range(256 * kMiB, kMiB)}, {range(0, kMiB)}}));
  const auto completions = wait_for_completion();
  EXPECT_FALSE(completions.at(0).result.has_value());
  EXPECT_FALSE(completions.at(0).punches_done);
  EXPECT_EQ(file_->allocated_bytes(), 0U);
}

TEST_F(ProvisionerTest, JobsEndInTheOrderOfSubmissionAndTheNextOneGoesOnAfterAFailure) {
  start();
  ASSERT_TRUE(provisioner_->submit({1, {}, {range(0, kMiB)}}));
  ASSERT_TRUE(provisioner_->submit({2, {}, {range(256 * kMiB, kMiB)}}));
  ASSERT_TRUE(provisioner_->submit({3, {}, {range(kMiB, kMiB)}}));
  std::vector<std::uint64_t> ids;
  while (ids.size() < 3) {
    for (const auto& completion : wait_for_completion()) ids.push_back(completion.id);
  }
  EXPECT_EQ(ids, (std::vector<std::uint64_t>{1, 2, 3}));
  EXPECT_EQ(file_->allocated_bytes(), 2 * kMiB);
}

TEST_F(ProvisionerTest, TheBoundCountsJobsUntilTheirCompletionIsTaken) {
  hold_helper_ = true;
  start({.jobs_max = 2});
  ASSERT_TRUE(provisioner_->submit({1, {}, {range(0, 4096)}}));
  completed_.acquire();  // done, not taken; the helper waits in its wake call
  ASSERT_TRUE(provisioner_->submit({2, {}, {range(4096, 4096)}}));
  const auto refused = provisioner_->submit({3, {}, {}});
  ASSERT_FALSE(refused.has_value());
  EXPECT_EQ(refused.error().code, ErrorCode::too_many_waiting);

  EXPECT_EQ(provisioner_->take_completions().size(), 1U);
  EXPECT_TRUE(provisioner_->submit({3, {}, {}}).has_value());
  helper_may_go_on_.release(3);
  completed_.acquire();
  completed_.acquire();
  EXPECT_EQ(provisioner_->take_completions().size(), 2U);
}

TEST_F(ProvisionerTest, StopsBetweenTwoSlices) {
  // The helper's every question to Headroom waits for an answer from here.
  const std::string meminfo = root_ / "proc/meminfo";
  fs::remove(meminfo);
  ASSERT_EQ(::mkfifo(meminfo.c_str(), 0600), 0);
  const auto previous_handler = ::signal(SIGPIPE, SIG_IGN);
  const auto answer_if_asked = [&] {
    const UniqueFd pipe(::open(meminfo.c_str(), O_WRONLY | O_NONBLOCK | O_CLOEXEC));
    constexpr std::string_view kText = "MemAvailable: 1048576 kB\n";
    if (pipe) (void)!::write(pipe.get(), kText.data(), kText.size());
  };
  start({.slice_bytes = 4096});
  ASSERT_TRUE(provisioner_->submit({1, {}, {range(0, 256 * kMiB)}}));
  ASSERT_TRUE(provisioner_->submit({2, {}, {range(0, 4096)}}));
  while (file_->allocated_bytes() == 0U) answer_if_asked();

  std::atomic<bool> is_destroyed = false;
  std::jthread destroyer([&] {
    provisioner_.reset();
    is_destroyed = true;
  });
  while (!is_destroyed) answer_if_asked();
  EXPECT_LT(file_->allocated_bytes().value(), 256 * kMiB);
  EXPECT_FALSE(completed_.try_acquire());
  ::signal(SIGPIPE, previous_handler);
}

TEST_F(ProvisionerTest, AnOptionOfZeroIsRefused) {
  EXPECT_FALSE(Provisioner::start(Headroom({root_, 0, 0}), {.slice_bytes = 0}, [] {}).has_value());
  EXPECT_FALSE(Provisioner::start(Headroom({root_, 0, 0}), {.jobs_max = 0}, [] {}).has_value());
}

}  // namespace
}  // namespace hotkv::platform
