#include "daemon/platform/log.hpp"

#include <fcntl.h>
#include <sys/socket.h>
#include <unistd.h>

#include <string>
#include <utility>

#include <gtest/gtest.h>

#include "shared/unique_fd.hpp"

namespace hotkv::platform {
namespace {

using std::chrono::milliseconds;

struct Pipe {
  UniqueFd reader;
  UniqueFd writer;
};

Pipe make_pipe() {
  int fds[2] = {-1, -1};
  EXPECT_EQ(::pipe2(fds, O_CLOEXEC), 0);
  return {UniqueFd(fds[0]), UniqueFd(fds[1])};
}

std::unique_ptr<Log> start_log(int fd) {
  auto log = Log::start({.fd = fd, .level = "info"});
  EXPECT_TRUE(log.has_value()) << log.error().message();
  return std::move(*log);
}

std::string read_line(int fd) {
  std::string line;
  for (char byte = 0; ::read(fd, &byte, 1) == 1 && byte != '\n';) line.push_back(byte);
  return line;
}

std::string read_to_end(int fd) {
  std::string text;
  char part[4096];
  for (ssize_t size = 0; (size = ::read(fd, part, sizeof part)) > 0;) {
    text.append(part, static_cast<std::size_t>(size));
  }
  return text;
}

TEST(Log, LinesAreKeyValueWithTimeAndLevel) {
  const Pipe pipe = make_pipe();
  const auto log = start_log(pipe.writer.get());
  log->logger().info("event=attach uid={}", 7);
  const std::string line = read_line(pipe.reader.get());
  EXPECT_TRUE(line.starts_with("ts=20")) << line;
  EXPECT_TRUE(line.ends_with(" level=info event=attach uid=7")) << line;
}

TEST(Log, TheLevelCanBeChangedByNameAndUnknownNamesAreRefused) {
  const Pipe pipe = make_pipe();
  const auto log = start_log(pipe.writer.get());
  log->logger().debug("event=hidden");
  EXPECT_TRUE(log->set_level("debug").has_value());
  EXPECT_EQ(log->level(), "debug");
  log->logger().debug("event=shown");
  EXPECT_TRUE(read_line(pipe.reader.get()).ends_with("event=shown"));
  for (const char* name : {"verbose", "", "INFO", "off"}) {
    const auto refused = log->set_level(name);
    ASSERT_FALSE(refused.has_value());
    EXPECT_EQ(refused.error().code, ErrorCode::configuration_error);
  }
  EXPECT_EQ(Log::start({.level = "loud"}).error().code, ErrorCode::configuration_error);
}

TEST(Log, AStderrThatNobodyReadsBlocksNeitherLoggingNorTheEnd) {
  const Pipe pipe = make_pipe();
  auto log = start_log(pipe.writer.get());
  const std::string payload(200, 'x');
  for (int count = 0; count < 20'000; ++count) log->logger().info("event=flood {}", payload);
  EXPECT_GT(log->lost_lines(), 0U);
  log.reset();
}

TEST(Log, AStalledReaderThatComesBackGetsTheNewestLines) {
  Pipe pipe = make_pipe();
  auto log = start_log(pipe.writer.get());
  for (int count = 0; count < 20'000; ++count) log->logger().info("event=flood n={}", count);
  std::string line;
  while (!line.ends_with("n=19999")) line = read_line(pipe.reader.get());
  EXPECT_GT(log->lost_lines(), 0U);
}

// FR-131: whoever reads stderr may go away.
TEST(Log, AReaderThatGoesAwayCostsLinesAndNothingElse) {
  Pipe pipe = make_pipe();
  const UniqueFd stderr_copy(::dup(pipe.writer.get()));
  auto log = start_log(stderr_copy.get());
  pipe.reader.reset();
  log->logger().info("event=lost");  // SIGPIPE would end this process
  while (log->lost_lines() == 0) {
  }
  EXPECT_EQ(log->lost_lines(), 1U);

  Pipe next = make_pipe();
  ASSERT_GE(::dup2(next.writer.get(), stderr_copy.get()), 0);
  log->logger().info("event=back");
  EXPECT_TRUE(read_line(next.reader.get()).ends_with("event=back"));
}

TEST(Log, ALongLineIsCutAtWhatAPipeTakesAtOnce) {
  Pipe pipe = make_pipe();
  auto log = start_log(pipe.writer.get());
  log->logger().info("{}", std::string(10'000, 'x'));
  log->logger().info("event=next");
  EXPECT_EQ(read_line(pipe.reader.get()).size(), 4095U);
  EXPECT_TRUE(read_line(pipe.reader.get()).ends_with("event=next"));
}

TEST(Log, WhatIsQueuedAtTheEndIsWritten) {
  Pipe pipe = make_pipe();
  auto log = start_log(pipe.writer.get());
  for (int count = 0; count < 100; ++count) log->logger().info("n={}", count);
  log.reset();
  pipe.writer.reset();
  EXPECT_TRUE(read_to_end(pipe.reader.get()).ends_with("n=99\n"));
}

TEST(RateLimit, LetsSoManyLinesOfAKindThroughEachSecondAndCountsTheRest) {
  RateLimit limit(2);
  EXPECT_EQ(limit.admit("bad-frame", milliseconds(1000)), 0U);
  EXPECT_EQ(limit.admit("bad-frame", milliseconds(1100)), 0U);
  EXPECT_EQ(limit.admit("bad-frame", milliseconds(1200)), std::nullopt);
  EXPECT_EQ(limit.admit("bad-frame", milliseconds(1999)), std::nullopt);
  EXPECT_EQ(limit.admit("bad-frame", milliseconds(2000)), 2U);
  EXPECT_EQ(limit.admit("bad-frame", milliseconds(2001)), 0U);
  EXPECT_EQ(limit.admit("bad-frame", milliseconds(2002)), std::nullopt);
}

TEST(RateLimit, KindsDoNotShareTheirAllowance) {
  RateLimit limit(1);
  EXPECT_EQ(limit.admit("a", milliseconds(0)), 0U);
  EXPECT_EQ(limit.admit("b", milliseconds(0)), 0U);
  EXPECT_EQ(limit.admit("a", milliseconds(0)), std::nullopt);
}

TEST(RateLimit, KeysWithoutEndShareOneAllowanceAtLast) {
  RateLimit limit(1);
  for (std::size_t key = 0; key < RateLimit::kKeysMax; ++key) {
    EXPECT_EQ(limit.admit(std::to_string(key), milliseconds(0)), 0U);
  }
  EXPECT_EQ(limit.admit("one more", milliseconds(0)), 0U);
  EXPECT_EQ(limit.admit("and another", milliseconds(0)), std::nullopt);
}

}  // namespace
}  // namespace hotkv::platform
