#include "client/library/connection.hpp"

#include <gtest/gtest.h>
#include <signal.h>
#include <sys/socket.h>

#include <thread>

#include "client/library/lease_table.hpp"
#include "client/library/watch.hpp"
#include "tests/support/fake_daemon.hpp"

namespace hotkv::client {
namespace {

using fake::Bytes;
using fake::join_bytes;
using fake::session_id;
using protocol::FrameHeader;
using protocol::OperationResult;
using protocol::Type;
using std::chrono::milliseconds;
using std::chrono::steady_clock;

constexpr std::uint64_t kBootToken = 77;

// A connection whose other end the test holds.
struct Line {
  std::unique_ptr<Connection> connection;
  std::unique_ptr<Watch> watch;  // ends first
  UniqueFd daemon;

  Line() {
    int fds[2];
    EXPECT_EQ(::socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0, fds), 0);
    daemon.reset(fds[1]);
    const auto wakeup = Wakeup::make().value();
    connection = std::make_unique<Connection>(ParentOnlyFd(UniqueFd(fds[0])), kBootToken, wakeup);
    watch = Watch::start(*connection, wakeup, {}).value();
  }

  // The next request as the daemon gets it.
  FrameHeader receive() {
    Bytes buffer(protocol::kFrameBytesMax);
    EXPECT_TRUE(wait_readable(daemon.get(), steady_clock::now() + std::chrono::minutes(1)));
    const auto frame = receive_frame(daemon.get(), buffer);
    EXPECT_TRUE(frame && frame->outcome == FrameOutcome::ok);
    FrameHeader header{};
    std::memcpy(&header, buffer.data(), sizeof header);
    return header;
  }
  void send(const Bytes& frame) {
    auto sent = send_frame(daemon.get(), frame);
    while (sent && *sent == FrameOutcome::would_block) {
      EXPECT_TRUE(wait_writable(daemon.get(), steady_clock::now() + std::chrono::minutes(1)));
      sent = send_frame(daemon.get(), frame);
    }
    EXPECT_TRUE(sent && *sent == FrameOutcome::ok);
  }
  void answer(FrameHeader request, std::uint32_t slot) {
    OperationResult result{};
    result.slot = slot;
    request.length_bytes = sizeof request + sizeof result;
    request.boot_token = kBootToken;
    send(join_bytes(request, result));
  }
  // Until the watching thread has seen that the daemon hung up.
  void wait_for_end() const {
    while (connection->is_connected()) std::this_thread::yield();
  }
};

Request close_request() {
  Request request(Type::close);
  request.add(protocol::CloseOperation{encode_name(session_id("a"), Epoch{1}), 1, 0});
  return request;
}

Deadline soon() {
  return steady_clock::now() + milliseconds(30);
}
Deadline late() {
  return steady_clock::now() + std::chrono::minutes(1);
}

std::uint32_t slot_of(const std::expected<Reply, Error>& reply) {
  return reply.value().result<OperationResult>(0).slot;
}

TEST(Connection, RepliesMayOvertakeOneAnother) {
  Line line;
  auto first = line.connection->submit(close_request());
  auto second = line.connection->submit(close_request());
  const FrameHeader one = line.receive();
  const FrameHeader two = line.receive();
  EXPECT_NE(one.request_id, two.request_id);
  line.answer(two, 2);
  line.answer(one, 1);
  EXPECT_EQ(slot_of(line.connection->await(std::move(first), late())), 1u);
  EXPECT_EQ(slot_of(line.connection->await(std::move(second), late())), 2u);
}

TEST(Connection, NoAnswerEndsByTheDeadlineAndItsLateReplyIsDropped) {
  Line line;
  const auto reply = line.connection->await(line.connection->submit(close_request()), soon());
  ASSERT_FALSE(reply.has_value());
  EXPECT_EQ(reply.error().code, ErrorCode::deadline_exceeded);
  line.answer(line.receive(), 1);
  auto next = line.connection->submit(close_request());
  line.answer(line.receive(), 2);
  EXPECT_EQ(slot_of(line.connection->await(std::move(next), late())), 2u);
}

TEST(Connection, ALateReplyReachesItsHandler) {
  Line line;
  std::atomic<std::uint32_t> seen{0};
  const auto handler = [&](const Reply& reply) {
    seen = reply.result<OperationResult>(0).slot;
    seen.notify_all();
  };
  EXPECT_FALSE(line.connection->await(line.connection->submit(close_request(), handler), soon())
                   .has_value());
  line.answer(line.receive(), 5);
  seen.wait(0);
  EXPECT_EQ(seen, 5u);
}

TEST(Connection, ALateReplyThatIsNoneReachesNoHandler) {
  Line line;
  std::atomic<bool> called{false};
  const auto handler = [&](const Reply&) { called = true; };
  for (const auto count : {std::uint16_t{0}, std::uint16_t{2}}) {
    EXPECT_FALSE(line.connection->await(line.connection->submit(close_request(), handler), soon())
                     .has_value());
    FrameHeader request = line.receive();
    request.count = count;
    line.answer(request, 5);
  }
  auto next = line.connection->submit(close_request());
  line.answer(line.receive(), 2);
  EXPECT_EQ(slot_of(line.connection->await(std::move(next), late())), 2u);
  EXPECT_FALSE(called);
}

TEST(Connection, AHangUpEndsEveryWaitAtOnceAndForGood) {
  Line line;
  std::vector<std::thread> waiting;
  std::atomic<int> unavailable{0};
  for (int t = 0; t < 4; ++t) {
    waiting.emplace_back([&] {
      const auto reply = line.connection->await(line.connection->submit(close_request()), late());
      if (!reply && reply.error().code == ErrorCode::daemon_unavailable) ++unavailable;
    });
  }
  for (int t = 0; t < 4; ++t) line.receive();
  line.daemon.reset();
  for (std::thread& thread : waiting) thread.join();
  EXPECT_EQ(unavailable, 4);
  EXPECT_FALSE(line.connection->is_connected());
  const auto reply = line.connection->await(line.connection->submit(close_request()), late());
  EXPECT_EQ(reply.error().code, ErrorCode::daemon_unavailable);
  EXPECT_NE(reply.error().message().find("hung up"), std::string::npos);
  line.connection->post(close_request());
}

TEST(Connection, AHangUpIsNoticedWithoutAnybodyAsking) {
  Line line;
  EXPECT_TRUE(line.connection->is_connected());
  line.daemon.reset();
  line.wait_for_end();
}

TEST(Connection, AReplySentBeforeTheHangUpCounts) {
  Line line;
  auto pending = line.connection->submit(close_request());
  line.answer(line.receive(), 3);
  line.daemon.reset();
  line.wait_for_end();
  EXPECT_EQ(slot_of(line.connection->await(std::move(pending), late())), 3u);
}

TEST(Connection, AFrameThatIsNoneEndsTheConnectionAndSaysWhy) {
  FrameHeader header{};
  header.length_bytes = sizeof header;
  header.type = 6;
  header.boot_token = kBootToken;
  FrameHeader wrong_length = header;
  wrong_length.length_bytes = 31;
  FrameHeader wrong_text = header;
  wrong_text.text_bytes = 1;
  FrameHeader foreign = header;
  foreign.boot_token = 1;
  FrameHeader reason = header;
  reason.status = static_cast<std::uint32_t>(ErrorCode::shutting_down);
  const std::pair<Bytes, const char*> frames[] = {
      {Bytes{}, "0 bytes"},
      {Bytes(31), "31 bytes"},
      {Bytes(protocol::kFrameBytesMax + 1), "65537"},
      {join_bytes(wrong_length), "31 bytes"},
      {join_bytes(wrong_text), "text"},
      {join_bytes(foreign), "boot token"},
      {join_bytes(reason), "shutting-down"},
  };
  for (const auto& [frame, words] : frames) {
    Line line;
    auto pending = line.connection->submit(close_request());
    line.receive();
    line.send(frame);
    const auto reply = line.connection->await(std::move(pending), late());
    ASSERT_FALSE(reply.has_value());
    EXPECT_EQ(reply.error().code, ErrorCode::daemon_unavailable);
    EXPECT_NE(reply.error().message().find(words), std::string::npos) << reply.error().message();
    EXPECT_FALSE(line.connection->is_connected());
  }
}

TEST(Connection, AReplyOfWrongFormFailsItsRequestOnly) {
  Line line;
  auto cut = line.connection->submit(close_request());
  auto other_type = line.connection->submit(close_request());
  auto other_count = line.connection->submit(close_request());
  auto good = line.connection->submit(close_request());
  FrameHeader headers[4];
  for (FrameHeader& header : headers) {
    header = line.receive();
    header.boot_token = kBootToken;
  }
  headers[0].length_bytes = sizeof(FrameHeader);
  line.send(join_bytes(headers[0]));
  headers[1].type = 3;
  line.answer(headers[1], 1);
  headers[2].count = 2;
  line.answer(headers[2], 1);
  FrameHeader stranger = headers[3];
  stranger.request_id = 0xffff'ffff'ffff;
  line.answer(stranger, 1);
  line.answer(headers[3], 4);
  for (auto* pending : {&cut, &other_type, &other_count}) {
    EXPECT_EQ(line.connection->await(std::move(*pending), late()).error().code,
              ErrorCode::protocol_error);
  }
  EXPECT_EQ(slot_of(line.connection->await(std::move(good), late())), 4u);
}

TEST(Connection, RequestsQueueInOrderWhileTheDaemonReadsNothing) {
  Line line;
  std::vector<Connection::Pending> pending;
  constexpr std::uint32_t kRequests = 2000;  // far more than a socket takes
  for (std::uint32_t i = 0; i < kRequests; ++i) {
    pending.push_back(line.connection->submit(close_request()));
    line.connection->post(close_request());
  }
  std::uint64_t last_id = 0;
  std::uint32_t answered = 0;
  for (std::uint32_t i = 0; i < 2 * kRequests; ++i) {
    const FrameHeader header = line.receive();
    EXPECT_EQ(header.request_id, last_id + 1);
    last_id = header.request_id;
    if (i % 2 == 0) line.answer(header, answered++);
  }
  for (std::uint32_t i = 0; i < kRequests; ++i) {
    EXPECT_EQ(slot_of(line.connection->await(std::move(pending[i]), late())), i);
  }
}

TEST(Connection, WhatWaitsInTheQueueIsBoundedAndNotSentAfterItsDeadline) {
  Line line;
  std::vector<Connection::Pending> pending;
  std::size_t submitted = 0;
  for (;; ++submitted) {
    Request request(Type::close);
    while (!request.is_full()) {
      request.add(protocol::CloseOperation{encode_name(session_id("a"), Epoch{1}), 1, 0});
    }
    auto one = line.connection->submit(std::move(request));
    if (submitted > 1000) FAIL() << "the queue grows without bound";
    if (submitted % 16 == 15) {
      const auto reply = line.connection->await(std::move(one), soon());
      if (reply.error().message().find("no more") != std::string::npos) break;
    } else {
      pending.push_back(std::move(one));
    }
  }
  pending.clear();  // given up: what was not sent is not sent any more
  auto last = line.connection->submit(close_request());
  std::size_t received = 1;
  FrameHeader header = line.receive();
  for (; header.count == 256; ++received) header = line.receive();
  EXPECT_LT(received, submitted);
  line.answer(header, 9);
  EXPECT_EQ(slot_of(line.connection->await(std::move(last), late())), 9u);
}

TEST(Connection, DetachingReturnsWhileTheDaemonSaysNothing) {
  Line line;
  auto pending = std::make_unique<Connection::Pending>(line.connection->submit(close_request()));
  pending.reset();
  const auto begin = steady_clock::now();
  line.watch.reset();
  line.connection.reset();
  EXPECT_LT(steady_clock::now() - begin, std::chrono::seconds(5));
}

TEST(Connection, ManyThreadsAskAtOnce) {
  Line line;
  constexpr int kThreads = 4;
  constexpr int kEach = 500;
  std::thread daemon([&] {
    // Where two requests are there, the second is answered first.
    for (int left = kThreads * kEach; left > 0;) {
      const FrameHeader first = line.receive();
      const bool more = wait_readable(line.daemon.get(), steady_clock::now()).has_value();
      const FrameHeader second = more ? line.receive() : FrameHeader{};
      if (more) line.answer(second, static_cast<std::uint32_t>(second.request_id));
      line.answer(first, static_cast<std::uint32_t>(first.request_id));
      left -= more ? 2 : 1;
    }
  });
  std::atomic<int> good{0};
  std::vector<std::thread> threads;
  for (int t = 0; t < kThreads; ++t) {
    threads.emplace_back([&] {
      for (int i = 0; i < kEach; ++i) {
        const auto reply = line.connection->await(line.connection->submit(close_request()), late());
        if (reply && slot_of(reply) == reply->header().request_id) ++good;
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  daemon.join();
  EXPECT_EQ(good, kThreads * kEach);
}

// ---- leases -------------------------------------------------------------------------------------

Position position(std::uint32_t slot, std::uint32_t generation) {
  return {SlotIndex{slot}, Generation{generation}, Tip::empty(), TokenCount{0}, TokenCount{0}};
}

TEST(LeaseTable, TheLastShareClosesOnceWithTheNewestGeneration) {
  Line line;
  LeaseTable table(*line.connection);
  {
    Lease first = table.share(session_id("a"), Epoch{1});
    first.stands_at(position(1, 5));
    Lease second = table.share(session_id("a"), Epoch{1});
    second.stands_at(position(1, 7));
    first.stands_at(position(1, 6));
  }
  Bytes buffer(protocol::kFrameBytesMax);
  ASSERT_TRUE(wait_readable(line.daemon.get(), late()));
  ASSERT_EQ(receive_frame(line.daemon.get(), buffer)->outcome, FrameOutcome::ok);
  protocol::CloseOperation close;
  std::memcpy(&close, buffer.data() + sizeof(FrameHeader), sizeof close);
  EXPECT_EQ(close.generation, 7u);
  EXPECT_EQ(receive_frame(line.daemon.get(), buffer)->outcome, FrameOutcome::would_block);
}

TEST(LeaseTable, AShareThatNeverGotTheLeaseOrOfAnEndedContextClosesNothing) {
  Line line;
  LeaseTable table(*line.connection);
  { const Lease never = table.share(session_id("a"), Epoch{1}); }
  {
    Lease ended = table.share(session_id("b"), Epoch{1});
    ended.stands_at(position(1, 5));
    ended.ended();
  }
  Bytes buffer(protocol::kFrameBytesMax);
  EXPECT_EQ(receive_frame(line.daemon.get(), buffer)->outcome, FrameOutcome::would_block);
}

}  // namespace
}  // namespace hotkv::client
