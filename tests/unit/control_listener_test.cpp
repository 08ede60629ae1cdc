#include "daemon/platform/control_listener.hpp"

#include <fcntl.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include <gtest/gtest.h>

#include "daemon/platform/peer.hpp"
#include "shared/seqpacket.hpp"
#include "tests/support/forked_child.hpp"

namespace hotkv::platform {
namespace {

namespace fs = std::filesystem;
using testing::ForkedChild;

Deadline soon() {
  return std::chrono::steady_clock::now() + std::chrono::seconds(30);
}

class ControlListener : public ::testing::Test {
 protected:
  void SetUp() override {
    char name[] = "/tmp/hotkv-test-XXXXXX";
    ASSERT_NE(::mkdtemp(name), nullptr);
    directory_ = name;
    path_ = directory_ / "control.sock";
  }
  void TearDown() override { fs::remove_all(directory_); }

  [[nodiscard]] std::expected<ListeningSocket, Error> open(ListenerOptions options = {}) const {
    return ListeningSocket::open(path_, options);
  }
  // Expects a refusal that names the path, and returns it.
  [[nodiscard]] Error refusal(ListenerOptions options = {}) const {
    const auto listener = open(options);
    EXPECT_FALSE(listener.has_value());
    return listener ? Error{} : listener.error();
  }
  void leave_dead_socket(int type) const {
    const auto address = socket_address(path_);
    const UniqueFd fd(::socket(AF_UNIX, type | SOCK_CLOEXEC, 0));
    ASSERT_EQ(::bind(fd.get(), reinterpret_cast<const sockaddr*>(&*address), sizeof *address), 0);
    ASSERT_EQ(::listen(fd.get(), 1), 0);
  }

  fs::path directory_;
  std::string path_;
};

TEST_F(ControlListener, ListensWithTheConfiguredModeAndRemovesItsPath) {
  {
    const auto listener = open({.mode = 0660});
    ASSERT_TRUE(listener.has_value()) << listener.error().message();
    struct stat status {};
    ASSERT_EQ(::lstat(path_.c_str(), &status), 0);
    EXPECT_EQ(status.st_mode & 07777, 0660U);
    EXPECT_TRUE(connect_seqpacket(path_, soon()).has_value());
  }
  EXPECT_FALSE(fs::exists(path_));
  EXPECT_TRUE(fs::exists(path_ + ".lock"));
}

TEST_F(ControlListener, CanBeAStreamSocket) {
  const auto listener = open({.type = SOCK_STREAM});
  ASSERT_TRUE(listener.has_value());
  const auto address = socket_address(path_);
  const UniqueFd client(::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0));
  EXPECT_EQ(::connect(client.get(), reinterpret_cast<const sockaddr*>(&*address), sizeof *address),
            0);
}

// FR-068: a left-over socket of ours is replaced once a try to connect shows that it is dead.
TEST_F(ControlListener, ADeadSocketOfOursIsReplacedWhateverItsType) {
  for (const int type : {SOCK_SEQPACKET, SOCK_STREAM}) {
    leave_dead_socket(type);
    const auto listener = open();
    ASSERT_TRUE(listener.has_value()) << listener.error().message();
    EXPECT_TRUE(connect_seqpacket(path_, soon()).has_value());
  }
}

TEST_F(ControlListener, ALiveDaemonIsNeverReplaced) {
  const auto first = open();
  ASSERT_TRUE(first.has_value());
  EXPECT_EQ(refusal().code, ErrorCode::address_in_use);
  EXPECT_TRUE(connect_seqpacket(path_, soon()).has_value());
}

TEST_F(ControlListener, ALiveSocketWithoutOurLockIsNeverReplacedEither) {
  for (const int type : {SOCK_SEQPACKET, SOCK_STREAM}) {
    auto stranger = open({.type = type});
    ASSERT_TRUE(stranger.has_value());
    fs::remove(path_ + ".lock");  // the next open locks a file of its own
    EXPECT_EQ(refusal().code, ErrorCode::address_in_use);
    EXPECT_TRUE(fs::is_socket(path_));
  }
}

// FR-068: a file, a folder or a link in the way is named with its type, and neither it nor what a
// link points to is touched.
TEST_F(ControlListener, WhatIsNoSocketIsNamedAndLeftAlone) {
  const fs::path target = directory_ / "target";
  std::ofstream(target) << "precious";

  std::ofstream(path_) << "precious";
  EXPECT_NE(refusal().message().find("a regular file"), std::string::npos);
  EXPECT_EQ(refusal().object, path_);
  EXPECT_EQ(fs::file_size(path_), 8U);
  fs::remove(path_);

  fs::create_directory(path_);
  EXPECT_NE(refusal().message().find("a directory"), std::string::npos);
  EXPECT_TRUE(fs::is_directory(path_));
  fs::remove(path_);

  fs::create_symlink(target, path_);
  EXPECT_NE(refusal().message().find("a symbolic link"), std::string::npos);
  EXPECT_TRUE(fs::is_symlink(path_));
  EXPECT_EQ(fs::file_size(target), 8U);
  fs::remove(path_);

  fs::create_symlink(directory_ / "nowhere", path_);
  EXPECT_EQ(refusal().code, ErrorCode::address_in_use);
}

// FR-068: what another user left is refused, not removed.
TEST_F(ControlListener, ADeadSocketOfAnotherUserIsLeftAlone) {
  if (::geteuid() != 0) GTEST_SKIP() << "needs root, to give a file away";
  leave_dead_socket(SOCK_SEQPACKET);
  ASSERT_EQ(::chown(path_.c_str(), 65534, 65534), 0);
  const Error error = refusal();
  EXPECT_EQ(error.code, ErrorCode::address_in_use);
  EXPECT_NE(error.cause.find("65534"), std::string::npos);
  EXPECT_TRUE(fs::is_socket(path_));
}

TEST_F(ControlListener, AMissingDirectoryIsNamed) {
  path_ = directory_ / "absent" / "control.sock";
  const Error error = refusal();
  EXPECT_EQ(error.code, ErrorCode::configuration_error);
  EXPECT_NE(error.cause.find((directory_ / "absent").string()), std::string::npos);
}

// FR-067: the folder counts too: where anybody may replace files no mode of a socket helps.
TEST_F(ControlListener, ADirectoryInWhichAnyUserMayReplaceFilesIsRefused) {
  ASSERT_EQ(::chmod(directory_.c_str(), 0777), 0);
  EXPECT_EQ(refusal().code, ErrorCode::configuration_error);
  EXPECT_FALSE(fs::exists(path_ + ".lock"));
  ASSERT_EQ(::chmod(directory_.c_str(), 01777), 0);
  EXPECT_TRUE(open().has_value());
}

// FR-070: no path is cut.
TEST_F(ControlListener, APathOfTheLimitWorksAndALongerOneCreatesNothing) {
  const std::size_t room = kSocketPathBytesMax - directory_.string().size() - 1;
  path_ = directory_ / std::string(room, 'a');
  ASSERT_EQ(path_.size(), 107U);
  EXPECT_TRUE(open().has_value());
  fs::remove(path_ + ".lock");

  path_ += "a";
  EXPECT_EQ(refusal().code, ErrorCode::invalid_argument);
  EXPECT_TRUE(fs::is_empty(directory_));
}

// FR-067: in 2,000 starts of either type with an umask of 0.
TEST_F(ControlListener, ThePathIsNeverSeenWithAWiderMode) {
  const mode_t previous = ::umask(0);
  std::atomic<bool> is_over = false;
  std::atomic<unsigned> modes_seen = 0;
  std::jthread watcher([&] {
    while (!is_over) {
      struct stat status {};
      if (::lstat(path_.c_str(), &status) == 0) modes_seen |= status.st_mode & 07777U;
    }
  });
  for (int round = 0; round < 2000; ++round) {
    const auto listener =
        open({.type = round % 2 == 0 ? SOCK_SEQPACKET : SOCK_STREAM, .mode = 0600});
    ASSERT_TRUE(listener.has_value());
  }
  while (modes_seen == 0) {
    const auto seen_at_least_once = open({.mode = 0600});
    std::this_thread::yield();
  }
  is_over = true;
  watcher.join();
  EXPECT_EQ(modes_seen, 0600U);
  EXPECT_EQ(::umask(previous), 0U);  // as it was before
}

TEST_F(ControlListener, OfFourDaemonsRacingForADeadSocketOneWins) {
  for (int round = 0; round < 20; ++round) {
    leave_dead_socket(SOCK_SEQPACKET);
    int start[2] = {-1, -1};
    int results[2] = {-1, -1};
    ASSERT_EQ(::pipe2(start, O_CLOEXEC), 0);
    ASSERT_EQ(::pipe2(results, O_CLOEXEC), 0);
    UniqueFd start_reader(start[0]);
    UniqueFd start_writer(start[1]);
    const UniqueFd result_reader(results[0]);
    const UniqueFd result_writer(results[1]);
    int end[2] = {-1, -1};
    ASSERT_EQ(::pipe2(end, O_CLOEXEC), 0);
    const UniqueFd end_reader(end[0]);
    UniqueFd end_writer(end[1]);

    std::vector<ForkedChild> daemons;
    for (int count = 0; count < 4; ++count) {
      daemons.emplace_back([&] {
        start_writer.reset();
        end_writer.reset();
        char byte = 0;
        (void)!::read(start_reader.get(), &byte, 1);  // all begin when the parent closes
        const auto listener = open();
        const char result = listener                                             ? 'w'
                            : listener.error().code == ErrorCode::address_in_use ? 'r'
                                                                                 : 'e';
        (void)!::write(result_writer.get(), &result, 1);
        (void)!::read(end_reader.get(), &byte, 1);  // the winner holds on until all have tried
        return 0;
      });
    }
    start_writer.reset();
    std::string outcome;
    while (outcome.size() < 4) {
      char result = 0;
      ASSERT_EQ(::read(result_reader.get(), &result, 1), 1);
      outcome.push_back(result);
    }
    std::sort(outcome.begin(), outcome.end());
    EXPECT_EQ(outcome, "rrrw");
    EXPECT_TRUE(connect_seqpacket(path_, soon()).has_value());
    end_writer.reset();
    for (ForkedChild& daemon : daemons) EXPECT_EQ(daemon.exit_code(), 0);
    EXPECT_FALSE(fs::exists(path_));
  }
}

TEST_F(ControlListener, AKilledDaemonsPathAndLockAreTakenOver) {
  ForkedChild daemon([&] {
    const auto listener = open();
    if (!listener) return 1;
    ::raise(SIGKILL);
    return 0;
  });
  daemon.exit_code();
  EXPECT_TRUE(fs::is_socket(path_));
  EXPECT_TRUE(open().has_value());
}

TEST_F(ControlListener, TheEndLeavesAPathAloneThatIsNoLongerItsOwn) {
  {
    const auto listener = open();
    ASSERT_TRUE(listener.has_value());
    fs::remove(path_);
    std::ofstream(path_) << "another's";
  }
  EXPECT_TRUE(fs::is_regular_file(path_));
}

TEST_F(ControlListener, MovesWithItsPathAndOutlivesATakenDescriptor) {
  auto first = open();
  ASSERT_TRUE(first.has_value());
  {
    ListeningSocket moved(std::move(*first));
    const UniqueFd fd = moved.take_fd();
    EXPECT_TRUE(connect_seqpacket(path_, soon()).has_value());
    *first = std::move(moved);
  }
  EXPECT_TRUE(fs::is_socket(path_));
  first = std::unexpected(Error{});
  EXPECT_FALSE(fs::exists(path_));
}

TEST_F(ControlListener, APeerIsKnownByItsUser) {
  const auto listener = open();
  ASSERT_TRUE(listener.has_value());
  const auto client = connect_seqpacket(path_, soon());
  ASSERT_TRUE(client.has_value());
  const UniqueFd server(::accept4(listener->fd(), nullptr, nullptr, SOCK_CLOEXEC));
  const auto peer = peer_credentials(server.get());
  ASSERT_TRUE(peer.has_value());
  EXPECT_EQ(peer->uid, ::geteuid());
  EXPECT_EQ(peer->gid, ::getegid());
  EXPECT_EQ(peer->pid, ::getpid());
  EXPECT_FALSE(peer_credentials(-1).has_value());
}

}  // namespace
}  // namespace hotkv::platform
