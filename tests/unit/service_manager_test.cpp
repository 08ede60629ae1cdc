#include "daemon/platform/service_manager.hpp"

#include <gtest/gtest.h>
#include <stdlib.h>

#include <array>
#include <string>
#include <vector>

#include "daemon/platform/descriptor_store.hpp"
#include "tests/support/daemon_process.hpp"

namespace hotkv::platform {
namespace {

// A manager that reads when it is told to.
class ServiceManagerTest : public ::testing::Test {
 protected:
  void SetUp() override { ::setenv("NOTIFY_SOCKET", path_.c_str(), 1); }
  void TearDown() override { ::unsetenv("NOTIFY_SOCKET"); }

  // Says so much that the manager's queue is full. How many messages that was.
  std::size_t fill_the_queue() {
    std::size_t sent = 0;
    while (!manager_.has_waiting() && sent < 100'000) {
      EXPECT_TRUE(manager_.ready(std::to_string(sent++)).has_value());
    }
    return sent;
  }
  std::vector<std::string> read_all() {
    std::vector<std::string> messages;
    while (auto message = store_.receive(socket_.get())) messages.push_back(*std::move(message));
    return messages;
  }

  testing::TemporaryDirectory folder_;
  const std::string path_ = (folder_.path() / "notify").string();
  const UniqueFd socket_ = listen_for_notifications(path_).value();
  DescriptorStore store_{100};
  ServiceManager manager_;
};

TEST_F(ServiceManagerTest, NothingIsSaidWhereNobodyListens) {
  ::unsetenv("NOTIFY_SOCKET");
  EXPECT_FALSE(manager_.running_under_systemd());
  EXPECT_TRUE(manager_.ready("").has_value());
  EXPECT_FALSE(manager_.has_waiting());
}

TEST_F(ServiceManagerTest, MessagesThatAreNotTakenWaitAndGoOutInOrder) {
  const std::size_t sent = fill_the_queue();
  ASSERT_TRUE(manager_.has_waiting());
  EXPECT_TRUE(manager_.ping().has_value());  // which is left out rather than late
  EXPECT_TRUE(manager_.let_go("a").has_value());
  EXPECT_TRUE(manager_.has_waiting());
  std::vector<std::string> messages = read_all();
  EXPECT_TRUE(manager_.flush().has_value());
  EXPECT_FALSE(manager_.has_waiting());
  for (std::string& message : read_all()) messages.push_back(std::move(message));
  ASSERT_EQ(messages.size(), sent + 1);
  for (std::size_t i = 0; i < sent; ++i) {
    EXPECT_EQ(messages[i], "READY=1\nSTATUS=" + std::to_string(i));
  }
  EXPECT_EQ(messages.back(), "FDSTOREREMOVE=1\nFDNAME=a");
}

TEST_F(ServiceManagerTest, AManagerThatNeverReadsCostsABoundedQueue) {
  fill_the_queue();
  bool was_refused = false;
  for (int i = 0; i < 5000 && !was_refused; ++i) {
    const auto sent = manager_.let_go("a");
    was_refused = !sent && sent.error().code == ErrorCode::too_many_waiting;
  }
  EXPECT_TRUE(was_refused);
}

TEST_F(ServiceManagerTest, AManagerThatIsGoneIsAnError) {
  const_cast<UniqueFd&>(socket_).reset();
  EXPECT_FALSE(manager_.ready("").has_value());
  EXPECT_FALSE(manager_.has_waiting());
}

// Kept is what somebody else holds; what is still on its way looks so, too.
TEST_F(ServiceManagerTest, AFileIsKeptAsLongAsTheManagerHasIt) {
  const MemoryFile file = MemoryFile::create("arena", 4096).value();
  const std::array<const MemoryFile*, 1> files{&file};
  EXPECT_FALSE(ServiceManager::is_kept(file).value());
  ASSERT_TRUE(manager_.keep("a", files).has_value());
  (void)read_all();
  ASSERT_EQ(store_.kept().size(), 1U);
  EXPECT_EQ(store_.kept()[0].name, "a");
  EXPECT_TRUE(ServiceManager::is_kept(file).value());
  ASSERT_TRUE(manager_.let_go("b").has_value());
  (void)read_all();
  EXPECT_TRUE(ServiceManager::is_kept(file).value());
  ASSERT_TRUE(manager_.let_go("a").has_value());
  (void)read_all();
  EXPECT_FALSE(ServiceManager::is_kept(file).value());
}

TEST_F(ServiceManagerTest, AStoreThatIsFullDropsWithoutAWord) {
  DescriptorStore full(1);
  const MemoryFile first = MemoryFile::create("arena", 4096).value();
  const MemoryFile second = MemoryFile::create("pages", 4096).value();
  const std::array<const MemoryFile*, 2> files{&first, &second};
  ASSERT_TRUE(manager_.keep("a", files).has_value());
  while (full.receive(socket_.get())) {
  }
  EXPECT_TRUE(ServiceManager::is_kept(first).value());
  EXPECT_FALSE(ServiceManager::is_kept(second).value());
}

}  // namespace
}  // namespace hotkv::platform
