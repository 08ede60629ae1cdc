#include "daemon/linux_shard_files.hpp"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/stat.h>

#include <condition_variable>
#include <mutex>

#include "tests/support/raw_client.hpp"

namespace hotkv {
namespace {

class LinuxShardFilesTest : public ::testing::Test {
 protected:
  void SetUp() override {
    auto started =
        platform::Provisioner::start(platform::Headroom({.machine_reserve_bytes = 0}), {}, [this] {
          const std::lock_guard lock(mutex_);
          ++completed_;
          wake_.notify_one();
        });
    ASSERT_TRUE(started.has_value());
    provisioner_ = *std::move(started);
    files_.emplace(*provisioner_, service_manager_, false);
    core_.emplace(
        core::Limits{.max_bytes = 16 << 20, .chunk_tokens = 16}, [] { return std::uint64_t{1000}; },
        *files_);
    const auto plan = core_->plan_shard(1000, testing::small_recipe());
    ASSERT_TRUE(plan.has_value());
    const auto prepared = files_->prepare(*plan);
    ASSERT_TRUE(prepared.has_value()) << prepared.error().message();
    EXPECT_NE(prepared->identity.boot_token, 0U);
    EXPECT_NE(prepared->identity.hash_key[0], prepared->identity.hash_key[1]);
    plan_.emplace(*plan);
    shard_ = core_->add_shard(*plan, prepared->memory, prepared->identity);
    files_->keep(shard_);
  }

  core::ExtentRange extent(std::uint32_t number) const {
    const std::uint64_t bytes = plan_->geometry.extent_bytes;
    return {shard_, ByteOffset{plan_->layout.chunks.value() + number * bytes}, bytes};
  }
  void run_order(std::uint64_t id, std::vector<core::ExtentRange> extents) {
    ASSERT_TRUE(files_->run({id, {}, std::move(extents)}).has_value());
    const auto completions = wait_completions();
    ASSERT_EQ(completions.size(), 1U);
    EXPECT_EQ(completions[0].id, id);
    EXPECT_TRUE(completions[0].result.has_value()) << completions[0].result.error().message();
  }
  std::uint64_t allocated_bytes() {
    const auto attached = files_->open_for({shard_, PageIndex{9}}, Access::write);
    struct stat status {};
    EXPECT_EQ(::fstat(attached->descriptors[1].get(), &status), 0);
    return static_cast<std::uint64_t>(status.st_blocks) * 512;
  }

  std::vector<platform::ProvisionCompletion> wait_completions() {
    std::unique_lock lock(mutex_);
    wake_.wait(lock, [this] { return completed_ > 0; });
    --completed_;
    lock.unlock();
    return files_->take_completions();
  }

  std::mutex mutex_;
  std::condition_variable wake_;
  int completed_ = 0;
  platform::ServiceManager service_manager_;
  std::unique_ptr<platform::Provisioner> provisioner_;
  std::optional<LinuxShardFiles> files_;
  std::optional<core::Core> core_;
  std::optional<core::ShardPlan> plan_;
  core::ShardId shard_;
};

TEST_F(LinuxShardFilesTest, AClientLivesAsLongAsTheDescriptionOfItsPage) {
  const core::ClientId client{shard_, PageIndex{3}};
  EXPECT_FALSE(files_->is_alive(client));
  auto attached = files_->open_for(client, Access::read);
  ASSERT_TRUE(attached.has_value()) << attached.error().message();
  EXPECT_TRUE(files_->is_alive(client));
  EXPECT_FALSE(files_->is_alive({shard_, PageIndex{2}}));
  EXPECT_FALSE(files_->is_alive({shard_, PageIndex{4}}));
  EXPECT_FALSE(files_->open_for(client, Access::read).has_value());
  attached->descriptors[2].reset();
  EXPECT_FALSE(files_->is_alive(client));
}

TEST_F(LinuxShardFilesTest, OnlyAWritersArenaIsWritable) {
  const auto mode = [](const UniqueFd& fd) { return ::fcntl(fd.get(), F_GETFL) & O_ACCMODE; };
  const auto reader = files_->open_for({shard_, PageIndex{0}}, Access::read);
  const auto writer = files_->open_for({shard_, PageIndex{1}}, Access::write);
  EXPECT_EQ(mode(reader->descriptors[0]), O_RDONLY);
  EXPECT_EQ(mode(writer->descriptors[0]), O_RDONLY);
  EXPECT_EQ(mode(reader->descriptors[1]), O_RDONLY);
  EXPECT_EQ(mode(writer->descriptors[1]), O_RDWR);
  EXPECT_EQ(mode(reader->descriptors[2]), O_RDWR);
}

TEST_F(LinuxShardFilesTest, AnOrderIsCarriedOutAndAnswered) {
  run_order(17, {extent(0)});
}

TEST_F(LinuxShardFilesTest, ExtentsBesideAndApartAreAllocatedAllAndNothingElse) {
  const std::uint64_t before = allocated_bytes();
  const std::vector<core::ExtentRange> extents{extent(3), extent(4), extent(5),
                                               extent(9), extent(8), extent(20)};
  run_order(17, extents);
  EXPECT_EQ(allocated_bytes(), before + 6 * plan_->geometry.extent_bytes);
  // Without these nothing is left: it was these.
  const auto attached = files_->open_for({shard_, PageIndex{8}}, Access::write);
  for (const core::ExtentRange& range : extents) {
    ASSERT_EQ(
        ::fallocate(attached->descriptors[1].get(), FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE,
                    static_cast<off_t>(range.arena_offset.value()),
                    static_cast<off_t>(range.size_bytes)),
        0);
  }
  EXPECT_EQ(allocated_bytes(), before);
}

TEST_F(LinuxShardFilesTest, ADroppedShardIsGoneAndItsDropIsNobodysAnswer) {
  std::vector<core::ExtentRange> much;
  for (std::uint32_t i = 0; i * plan_->geometry.extent_bytes < 2 << 20; ++i) {
    much.push_back(extent(i));
  }
  run_order(16, std::move(much));
  const auto attached = files_->open_for({shard_, PageIndex{0}}, Access::write);
  files_->drop(shard_);
  files_->drop(shard_);
  EXPECT_TRUE(wait_completions().empty());
  // Nobody is declared dead for want of knowledge.
  EXPECT_TRUE(files_->is_alive({shard_, PageIndex{0}}));
  EXPECT_FALSE(files_->open_for({shard_, PageIndex{1}}, Access::write).has_value());
  EXPECT_FALSE(files_->run({17, {}, {extent(0)}}).has_value());
}

// A client that attaches and leaves in a loop must not fill the queue of those who need memory.
TEST_F(LinuxShardFilesTest, ADroppedShardWithoutMemoryIsNoJob) {
  files_->drop(shard_);
  EXPECT_FALSE(files_->run({17, {}, {extent(0)}}).has_value());
  // Jobs end in the order of their submission: one of the drop would be the first.
  ASSERT_TRUE(provisioner_->submit({18, {}, {}}).has_value());
  {
    std::unique_lock lock(mutex_);
    wake_.wait(lock, [this] { return completed_ > 0; });
  }
  const auto completions = provisioner_->take_completions();
  ASSERT_EQ(completions.size(), 1U);
  EXPECT_EQ(completions[0].id, 18U);
}

}  // namespace
}  // namespace hotkv
