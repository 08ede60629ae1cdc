#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <cstring>
#include <fstream>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "client/examples/shard/frame.hpp"
#include "client/examples/shard/frame_client.hpp"
#include "client/examples/shard/frame_server.hpp"
#include "shared/unique_fd.hpp"
#include "tests/support/daemon_process.hpp"
#include "tests/support/forked_child.hpp"

namespace hotkv::shard {
namespace {

using namespace std::chrono_literals;
using testing::eventually;
using testing::ForkedChild;
using ::testing::HasSubstr;

class Frames : public ::testing::Test {
 protected:
  // A server in a process of its own, up when this returns.
  std::unique_ptr<ForkedChild> serve(std::function<std::string(const std::string&)> answer =
                                         [](const std::string& frame) {
                                           return "<" + frame + ">";
                                         }) {
    auto child = std::make_unique<ForkedChild>([&] {
      return serve_frames(
                 path, [] {}, answer)
                 ? 0
                 : 1;
    });
    EXPECT_TRUE(eventually([&] { return FrameClient(path).reach().has_value(); }));
    return child;
  }
  testing::TemporaryDirectory folder;
  std::filesystem::path path = folder.path() / "shard.sock";
};

TEST_F(Frames, AnswersFramesOfEverySize) {
  const auto server = serve();
  FrameClient client(path);
  for (const std::size_t size : {std::size_t{0}, std::size_t{1}, std::size_t{5'000'000}}) {
    const std::string frame(size, 'x');
    EXPECT_EQ(client.exchange(frame, 10s).value(), "<" + frame + ">");
  }
}

TEST_F(Frames, SaysThatNobodyIsThere) {
  FrameClient client(path);
  const auto missing = client.exchange("a", 10s);
  ASSERT_FALSE(missing);
  EXPECT_EQ(missing.error().code, ErrorCode::system_error);
  EXPECT_THAT(missing.error().message(), HasSubstr("No such file"));
  EXPECT_FALSE(client.reach());
  FrameClient too_long(folder.path() / std::string(200, 'x'));
  EXPECT_EQ(too_long.exchange("a", 10s).error().code, ErrorCode::invalid_argument);
}

TEST_F(Frames, AServerThatWasReplacedBetweenTwoFramesIsNotNoticed) {
  auto server = serve();
  FrameClient client(path);
  ASSERT_TRUE(client.exchange("a", 10s));
  server->kill_and_wait();
  EXPECT_FALSE(client.reach());
  server = serve();
  EXPECT_EQ(client.exchange("b", 10s).value(), "<b>");
  server->kill_and_wait();
  server = serve();
  EXPECT_EQ(client.exchange("c", 10s).value(), "<c>") << "also without reach";
}

TEST_F(Frames, AServerThatDoesNotAnswerIsGivenUpInTime) {
  auto server = serve();
  FrameClient client(path);
  ASSERT_TRUE(client.exchange("a", 10s));
  server->stop();
  const auto late = client.exchange("b", 50ms);
  ASSERT_FALSE(late);
  EXPECT_EQ(late.error().code, ErrorCode::deadline_exceeded);
  const auto late_as_well = client.exchange(std::string(8'000'000, 'x'), 50ms);
  EXPECT_EQ(late_as_well.error().code, ErrorCode::deadline_exceeded) << "and is not read";
  ::kill(server->pid(), SIGCONT);
  EXPECT_EQ(client.exchange("c", 10s).value(), "<c>");
}

// A frame whose client gave it up may be older than one that was answered meanwhile.
TEST_F(Frames, AFrameThatWasGivenUpIsNotAnsweredLater) {
  const auto log = folder.path() / "log";
  auto server = serve([log](const std::string& frame) {
    std::ofstream(log, std::ios::app) << frame.size() << " ";
    return frame;
  });
  FrameClient impatient(path);
  server->stop();
  for (const std::size_t size : {100, 100'000, 200'000}) {
    EXPECT_FALSE(impatient.exchange(std::string(size, 'x'), 50ms));
  }
  ::kill(server->pid(), SIGCONT);
  ASSERT_TRUE(FrameClient(path).exchange("new", 10s));
  ASSERT_TRUE(FrameClient(path).exchange("newer", 10s));
  std::string text;
  std::getline(std::ifstream(log), text);
  EXPECT_EQ(text, "3 5 ");
}

TEST_F(Frames, HangsUpOnAFrameThatIsTooLong) {
  const auto server = serve();
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  std::strncpy(address.sun_path, path.c_str(), sizeof address.sun_path - 1);
  const UniqueFd fd(::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0));
  ASSERT_EQ(::connect(fd.get(), reinterpret_cast<const sockaddr*>(&address), sizeof address), 0);
  ASSERT_EQ(::send(fd.get(), "\xff\xff\xff\xff", 4, MSG_NOSIGNAL), 4);
  char byte;
  EXPECT_EQ(::recv(fd.get(), &byte, 1, 0), 0);
  EXPECT_TRUE(FrameClient(path).exchange("others go on", 10s));
  FrameClient client(path);
  EXPECT_EQ(client.exchange(std::string(kFrameBytesMax + 1, 'x'), 10s).error().code,
            ErrorCode::invalid_argument);
}

TEST_F(Frames, MoreClientsThanItServesAreTurnedAway) {
  const auto server = serve();
  std::vector<std::unique_ptr<FrameClient>> clients;
  std::size_t served = 0;
  for (int i = 0; i < 80; ++i) {
    clients.push_back(std::make_unique<FrameClient>(path));
    served += clients.back()->exchange("a", 10s).has_value();
  }
  EXPECT_EQ(served, 64u);
  clients.clear();
  EXPECT_TRUE(eventually([&] { return FrameClient(path).exchange("a", 10s).has_value(); }));
}

TEST_F(Frames, ReplacesADeadServersFileAndNothingElse) {
  auto server = serve();
  EXPECT_EQ(serve_frames(
                path, [] {}, [](const std::string& f) { return f; })
                .error()
                .code,
            ErrorCode::address_in_use);
  server->kill_and_wait();
  ASSERT_TRUE(std::filesystem::exists(path));
  server = serve();
  EXPECT_EQ(std::filesystem::status(path).permissions(),
            std::filesystem::perms::owner_read | std::filesystem::perms::owner_write);
  ::kill(server->pid(), SIGTERM);
  EXPECT_EQ(server->exit_code(), 0);
  EXPECT_FALSE(std::filesystem::exists(path));

  const auto model = folder.path() / "model.bin";
  std::ofstream(model) << "weights";
  EXPECT_THAT(serve_frames(
                  model, [] {}, [](const std::string& f) { return f; })
                  .error()
                  .message(),
              HasSubstr("no socket"));
  EXPECT_TRUE(std::filesystem::exists(model));
}

}  // namespace
}  // namespace hotkv::shard
