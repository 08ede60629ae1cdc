#include "daemon/linux_shard_files.hpp"

#include <fcntl.h>
#include <gtest/gtest.h>

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
    files_.emplace(*provisioner_, false);
    core_.emplace(
        core::Limits{.max_bytes = 1 << 20, .chunk_tokens = 16}, [] { return std::uint64_t{1000}; },
        *files_);
    const auto plan = core_->plan_shard(1000, testing::small_recipe());
    ASSERT_TRUE(plan.has_value());
    const auto prepared = files_->prepare(*plan);
    ASSERT_TRUE(prepared.has_value()) << prepared.error().message();
    EXPECT_NE(prepared->entropy.boot_token, 0U);
    EXPECT_NE(prepared->entropy.hash_key[0], prepared->entropy.hash_key[1]);
    plan_.emplace(*plan);
    shard_ = core_->add_shard(*plan, prepared->memory, prepared->entropy);
    files_->keep(shard_);
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
  core::MemoryOrder order{17, {}, {}};
  order.provision.push_back({shard_, plan_->layout.chunks, plan_->geometry.extent_bytes});
  ASSERT_TRUE(files_->run(order).has_value());
  const auto completions = wait_completions();
  ASSERT_EQ(completions.size(), 1U);
  EXPECT_EQ(completions[0].id, 17U);
  EXPECT_TRUE(completions[0].result.has_value()) << completions[0].result.error().message();
}

TEST_F(LinuxShardFilesTest, ADroppedShardIsGoneAndItsDropIsNobodysAnswer) {
  const auto attached = files_->open_for({shard_, PageIndex{0}}, Access::write);
  files_->drop(shard_);
  files_->drop(shard_);
  EXPECT_TRUE(wait_completions().empty());
  // Nobody is declared dead for want of knowledge.
  EXPECT_TRUE(files_->is_alive({shard_, PageIndex{0}}));
  EXPECT_FALSE(files_->open_for({shard_, PageIndex{1}}, Access::write).has_value());
  core::MemoryOrder order{17, {}, {}};
  order.provision.push_back({shard_, plan_->layout.chunks, plan_->geometry.extent_bytes});
  EXPECT_FALSE(files_->run(order).has_value());
}

}  // namespace
}  // namespace hotkv
