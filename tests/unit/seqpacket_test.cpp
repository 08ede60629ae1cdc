#include "shared/seqpacket.hpp"

#include <fcntl.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include <gtest/gtest.h>

namespace hotkv {
namespace {

using std::chrono::steady_clock;

struct SocketPair {
  UniqueFd a;
  UniqueFd b;
};

SocketPair make_pair_of_sockets() {
  int fds[2] = {-1, -1};
  EXPECT_EQ(::socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, fds), 0);
  return {UniqueFd(fds[0]), UniqueFd(fds[1])};
}

std::vector<std::byte> bytes_of(std::string_view text) {
  std::vector<std::byte> bytes(text.size());
  std::transform(text.begin(), text.end(), bytes.begin(),
                 [](char c) { return static_cast<std::byte>(c); });
  return bytes;
}

std::size_t open_fd_count() {
  const std::filesystem::directory_iterator fds("/proc/self/fd");
  return static_cast<std::size_t>(std::distance(begin(fds), end(fds)));
}

Deadline soon() {
  return steady_clock::now() + std::chrono::seconds(30);
}

// A directory of its own, and a listening socket in it.
class SeqpacketListener : public ::testing::Test {
 protected:
  void SetUp() override {
    char name[] = "/tmp/hotkv-test-XXXXXX";
    ASSERT_NE(::mkdtemp(name), nullptr);
    directory_ = name;
  }
  void TearDown() override { std::filesystem::remove_all(directory_); }

  UniqueFd listen_on(const std::string& path, int backlog) {
    const auto address = socket_address(path);
    EXPECT_TRUE(address.has_value());
    UniqueFd fd(::socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0));
    EXPECT_EQ(::bind(fd.get(), reinterpret_cast<const sockaddr*>(&*address), sizeof *address), 0);
    EXPECT_EQ(::listen(fd.get(), backlog), 0);
    return fd;
  }

  std::string directory_;
};

// FR-070: one function makes every address of daemon, library and tool, and cuts none.
TEST(SocketAddress, TakesPathsUpToTheLimitAndNamesTheLengthBeyond) {
  EXPECT_TRUE(socket_address(std::string(106, 'a')).has_value());
  EXPECT_TRUE(socket_address(std::string(107, 'a')).has_value());
  for (const std::size_t length : {108U, 109U, 300U}) {
    const auto address = socket_address(std::string(length, 'a'));
    ASSERT_FALSE(address.has_value());
    EXPECT_EQ(address.error().code, ErrorCode::invalid_argument);
    EXPECT_NE(address.error().cause.find(std::to_string(length)), std::string::npos);
    EXPECT_NE(address.error().cause.find("107"), std::string::npos);
  }
}

// FR-070: no abstract name, and no path that a zero byte would cut.
TEST(SocketAddress, RefusesEmptyAndAbstractAndSplitPaths) {
  using namespace std::string_view_literals;
  for (const std::string_view path : {""sv, "\0name"sv, "/run/a\0b"sv}) {
    const auto address = socket_address(path);
    ASSERT_FALSE(address.has_value());
    EXPECT_EQ(address.error().code, ErrorCode::invalid_argument);
  }
}

TEST_F(SeqpacketListener, ConnectsAndCarriesAFrame) {
  const std::string path = directory_ + "/s";
  const UniqueFd listener = listen_on(path, 1);
  const auto client = connect_seqpacket(path, soon());
  ASSERT_TRUE(client.has_value()) << client.error().message();
  const UniqueFd server(::accept4(listener.get(), nullptr, nullptr, SOCK_CLOEXEC));
  EXPECT_NE(::fcntl(client->get(), F_GETFD) & FD_CLOEXEC, 0);

  EXPECT_EQ(send_frame(client->get(), bytes_of("hello")), FrameOutcome::ok);
  std::array<std::byte, 16> buffer{};
  const auto frame = receive_frame(server.get(), buffer);
  ASSERT_TRUE(frame.has_value());
  EXPECT_EQ(frame->size_bytes, 5U);
}

TEST_F(SeqpacketListener, NobodyThereIsDaemonUnavailableNamingThePath) {
  const std::string path = directory_ + "/s";
  const auto absent = connect_seqpacket(path, soon());
  ASSERT_FALSE(absent.has_value());
  EXPECT_EQ(absent.error().code, ErrorCode::daemon_unavailable);
  EXPECT_EQ(absent.error().object, path);

  listen_on(path, 1).reset();  // the file stays, the listener is gone
  const auto dead = connect_seqpacket(path, soon());
  ASSERT_FALSE(dead.has_value());
  EXPECT_EQ(dead.error().code, ErrorCode::daemon_unavailable);
}

TEST_F(SeqpacketListener, AFullQueueIsWaitedForUntilTheDeadline) {
  const std::string path = directory_ + "/s";
  const UniqueFd listener = listen_on(path, 0);
  const auto first = connect_seqpacket(path, soon());  // fills the queue of one
  ASSERT_TRUE(first.has_value());
  const auto late = connect_seqpacket(path, steady_clock::now());
  ASSERT_FALSE(late.has_value());
  EXPECT_EQ(late.error().code, ErrorCode::deadline_exceeded);
}

// FR-077: a short queue is waited for, not an error.
TEST_F(SeqpacketListener, ManyClientsGetThroughAShortQueue) {
  const std::string path = directory_ + "/s";
  const UniqueFd listener = listen_on(path, 1);
  constexpr int kClients = 16;
  std::array<bool, kClients> connected{};
  std::vector<std::jthread> clients;
  for (bool& is_connected : connected) {
    clients.emplace_back([&] { is_connected = connect_seqpacket(path, soon()).has_value(); });
  }
  for (int count = 0; count < kClients; ++count) {
    UniqueFd(::accept4(listener.get(), nullptr, nullptr, SOCK_CLOEXEC)).reset();
  }
  clients.clear();
  EXPECT_TRUE(std::all_of(connected.begin(), connected.end(), [](bool is) { return is; }));
}

TEST(Seqpacket, AnEmptyFrameIsToldFromTheEnd) {
  auto [a, b] = make_pair_of_sockets();
  std::array<std::byte, 16> buffer{};
  EXPECT_EQ(receive_frame(b.get(), buffer)->outcome, FrameOutcome::would_block);
  EXPECT_EQ(send_frame(a.get(), {}), FrameOutcome::ok);
  const auto empty = receive_frame(b.get(), buffer);
  EXPECT_EQ(empty->outcome, FrameOutcome::ok);
  EXPECT_EQ(empty->size_bytes, 0U);
  a.reset();
  EXPECT_EQ(receive_frame(b.get(), buffer)->outcome, FrameOutcome::closed);
  EXPECT_EQ(send_frame(b.get(), bytes_of("x")), FrameOutcome::closed);
}

TEST(Seqpacket, WhatAPeerSentBeforeClosingIsReceivedEvenIfItLeftOursUnread) {
  auto [a, b] = make_pair_of_sockets();
  EXPECT_EQ(send_frame(b.get(), bytes_of("never read")), FrameOutcome::ok);
  EXPECT_EQ(send_frame(a.get(), bytes_of("why")), FrameOutcome::ok);
  a.reset();
  std::array<std::byte, 16> buffer{};
  const auto last = receive_frame(b.get(), buffer);
  EXPECT_EQ(last->outcome, FrameOutcome::ok);
  EXPECT_EQ(last->size_bytes, 3U);
  EXPECT_EQ(receive_frame(b.get(), buffer)->outcome, FrameOutcome::closed);
}

TEST(Seqpacket, ATooLargeFrameIsAProtocolErrorAndTheNextOneIsFine) {
  auto [a, b] = make_pair_of_sockets();
  EXPECT_EQ(send_frame(a.get(), std::vector<std::byte>(17)), FrameOutcome::ok);
  EXPECT_EQ(send_frame(a.get(), std::vector<std::byte>(16)), FrameOutcome::ok);
  std::array<std::byte, 16> buffer{};
  const auto large = receive_frame(b.get(), buffer);
  ASSERT_FALSE(large.has_value());
  EXPECT_EQ(large.error().code, ErrorCode::protocol_error);
  EXPECT_NE(large.error().cause.find("17 bytes"), std::string::npos);
  EXPECT_EQ(receive_frame(b.get(), buffer)->size_bytes, 16U);
}

TEST(Seqpacket, AFullSocketWouldBlockAndIsWaitedForUntilTheDeadline) {
  auto [a, b] = make_pair_of_sockets();
  const std::vector<std::byte> frame(16 << 10);
  while (send_frame(a.get(), frame) == FrameOutcome::ok) {
  }
  EXPECT_EQ(send_frame(a.get(), frame), FrameOutcome::would_block);
  const auto late = wait_writable(a.get(), steady_clock::now());
  ASSERT_FALSE(late.has_value());
  EXPECT_EQ(late.error().code, ErrorCode::deadline_exceeded);

  std::vector<std::byte> buffer(16 << 10);
  while (receive_frame(b.get(), buffer)->outcome == FrameOutcome::ok) {
  }
  EXPECT_TRUE(wait_writable(a.get(), soon()).has_value());
}

TEST(Seqpacket, WaitingForABusySocketEndsWithAHangUpToo) {
  auto [a, b] = make_pair_of_sockets();
  EXPECT_FALSE(wait_readable(b.get(), steady_clock::now()).has_value());
  a.reset();
  EXPECT_TRUE(wait_readable(b.get(), soon()).has_value());
}

TEST(Seqpacket, DescriptorsArriveInOrderAndCloseOnExec) {
  auto [a, b] = make_pair_of_sockets();
  const UniqueFd zero(::open("/dev/zero", O_RDONLY | O_CLOEXEC));
  const UniqueFd null(::open("/dev/null", O_RDONLY | O_CLOEXEC));
  const std::array<int, 2> fds{zero.get(), null.get()};
  EXPECT_EQ(send_frame(a.get(), bytes_of("two"), fds), FrameOutcome::ok);

  std::array<std::byte, 16> buffer{};
  ReceivedDescriptors received;
  ASSERT_EQ(receive_frame(b.get(), buffer, received)->outcome, FrameOutcome::ok);
  ASSERT_EQ(received.count, 2U);
  for (std::size_t index = 0; index < 2; ++index) {
    struct stat sent {};
    struct stat got {};
    ::fstat(fds[index], &sent);
    ::fstat(received.fds[index].get(), &got);
    EXPECT_EQ(sent.st_rdev, got.st_rdev);
    EXPECT_NE(::fcntl(received.fds[index].get(), F_GETFD) & FD_CLOEXEC, 0);
  }
}

// FR-073, FR-074: the daemon receives none at all, so it can lose none and keep none.
TEST(Seqpacket, DescriptorsSentToTheDaemonTakeNoNumberThere) {
  auto [a, b] = make_pair_of_sockets();
  const std::size_t before = open_fd_count();
  const std::array<int, 8> fds{0, 0, 0, 0, 0, 0, 0, 0};
  std::array<std::byte, 16> buffer{};
  for (int round = 0; round < 100; ++round) {
    ASSERT_EQ(send_frame(a.get(), bytes_of("x"), fds), FrameOutcome::ok);
    ASSERT_EQ(receive_frame(b.get(), buffer)->size_bytes, 1U);
  }
  EXPECT_EQ(open_fd_count(), before);
}

// FR-074: those beyond the expected ones are closed, not forgotten.
TEST(Seqpacket, MoreDescriptorsThanAFrameMayCarryAreRefusedAndClosed) {
  auto [a, b] = make_pair_of_sockets();
  const std::vector<int> nine(9, 0);
  EXPECT_EQ(send_frame(a.get(), bytes_of("x"), nine).error().code, ErrorCode::invalid_argument);

  // A peer that does not use send_frame.
  std::array<char, CMSG_SPACE(sizeof(int) * 253)> control{};
  char byte = 'x';
  iovec part{&byte, 1};
  msghdr message{};
  message.msg_iov = &part;
  message.msg_iovlen = 1;
  message.msg_control = control.data();
  message.msg_controllen = control.size();
  cmsghdr* header = CMSG_FIRSTHDR(&message);
  header->cmsg_len = CMSG_LEN(sizeof(int) * 253);
  header->cmsg_level = SOL_SOCKET;
  header->cmsg_type = SCM_RIGHTS;
  ASSERT_EQ(::sendmsg(a.get(), &message, 0), 1);

  const std::size_t before = open_fd_count();
  std::array<std::byte, 16> buffer{};
  ReceivedDescriptors received;
  const auto frame = receive_frame(b.get(), buffer, received);
  ASSERT_FALSE(frame.has_value());
  EXPECT_EQ(frame.error().code, ErrorCode::system_error);
  EXPECT_EQ(received.count, 0U);
  EXPECT_EQ(open_fd_count(), before);
}

// FR-073: the connection outlives the loss.
TEST(Seqpacket, ADescriptorLostToTheLimitIsAnErrorAndTheConnectionStaysUsable) {
  auto [a, b] = make_pair_of_sockets();
  const std::array<int, 2> fds{0, 0};
  EXPECT_EQ(send_frame(a.get(), bytes_of("first"), fds), FrameOutcome::ok);
  EXPECT_EQ(send_frame(a.get(), bytes_of("again"), fds), FrameOutcome::ok);
  const UniqueFd next(::dup(0));  // room for exactly one more
  rlimit original{};
  ::getrlimit(RLIMIT_NOFILE, &original);
  rlimit tight = original;
  tight.rlim_cur = static_cast<rlim_t>(next.get()) + 2;
  const std::size_t before = open_fd_count();

  ::setrlimit(RLIMIT_NOFILE, &tight);
  std::array<std::byte, 16> buffer{};
  ReceivedDescriptors received;
  const auto lost = receive_frame(b.get(), buffer, received);
  ::setrlimit(RLIMIT_NOFILE, &original);

  ASSERT_FALSE(lost.has_value());
  EXPECT_EQ(lost.error().code, ErrorCode::system_error);
  EXPECT_NE(lost.error().cause.find("a descriptor was not delivered"), std::string::npos);
  EXPECT_EQ(open_fd_count(), before);
  EXPECT_EQ(receive_frame(b.get(), buffer, received)->outcome, FrameOutcome::ok);
  EXPECT_EQ(received.count, 2U);
}

}  // namespace
}  // namespace hotkv
