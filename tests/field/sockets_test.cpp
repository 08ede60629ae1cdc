// Sockets and descriptors.

#include <fcntl.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <filesystem>
#include <set>
#include <string>
#include <thread>
#include <vector>

#include "tests/support/call_filter.hpp"
#include "tests/support/forked_child.hpp"
#include "tests/support/raw_client.hpp"
#include "tests/support/sanitized.hpp"
#include "tests/support/under_fire.hpp"

namespace hotkv::testing {
namespace {

namespace fs = std::filesystem;

const std::vector<std::string> kFlags{"--max-bytes=16M", "--hugepages=off"};

class Sockets : public UnderFire {};

std::expected<Client, Error> attach_at(const std::string& socket_path) {
  ClientOptions options;
  options.socket_path = socket_path;
  return Client::attach(options, worker_recipe());
}

// Of this process. A daemon's number is compared with <=: it may be reading a file at one moment.
std::size_t open_descriptors() {
  return static_cast<std::size_t>(std::distance(fs::directory_iterator("/proc/self/fd"), {}));
}

// Gathers the modes that files are seen with, in a thread, from here to its end.
class ModeWatch {
 public:
  explicit ModeWatch(std::vector<std::string> paths)
      : paths_(std::move(paths)), seen_(paths_.size()), thread_([this] { watch(); }) {}
  std::vector<unsigned> end() {
    is_over_ = true;
    thread_.join();
    return {seen_.begin(), seen_.end()};
  }

 private:
  void watch() {
    while (!is_over_) {
      for (std::size_t index = 0; index < paths_.size(); ++index) {
        struct stat status {};
        if (::lstat(paths_[index].c_str(), &status) == 0) seen_[index] |= status.st_mode & 07777U;
      }
    }
  }

  std::vector<std::string> paths_;
  std::vector<unsigned> seen_;
  std::atomic<bool> is_over_ = false;
  std::thread thread_;
};

// FR-067: while daemons start with an umask of 0, neither socket is ever open to everybody.
TEST(DaemonSockets, AreNeverSeenWithAWiderModeWhileDaemonsStart) {
  const TemporaryDirectory folder;
  const mode_t umask_before = ::umask(0);
  ModeWatch watch({(folder.path() / "control.sock").string(),
                   (folder.path() / "admin.sock").string(),
                   (folder.path() / "control.sock.lock").string()});
  for (int start = 0; start < 20; ++start) {
    DaemonProcess daemon({.flags = kFlags, .directory = folder.path()});
    EXPECT_TRUE(daemon.wait_ready()) << daemon.err();
    start % 2 == 0 ? daemon.kill() : static_cast<void>(daemon.stop());  // over a left-over, too
  }
  ::umask(umask_before);
  EXPECT_EQ(watch.end(), (std::vector<unsigned>{0660, 0660, 0600}));
}

// FR-070: 107 bytes of a path work in daemon, library and tool alike; more is refused with the
// length and the limit before anything is bound, connected or made.
TEST(DaemonSockets, TakePathsOf107BytesEverywhereAndNoneThatIsLonger) {
  const TemporaryDirectory folder;
  const std::string start = folder.path().string() + "/";
  for (const std::size_t size : {106U, 107U}) {
    const std::string name(size - start.size(), 'x');
    DaemonProcess daemon({.flags = kFlags, .directory = folder.path(), .control_name = name});
    ASSERT_TRUE(daemon.wait_ready()) << daemon.err();
    EXPECT_TRUE(attach_at(start + name).has_value()) << size;
    // Nor does a longer path that begins with it lead there.
    const auto beyond = attach_at(start + std::string(108 - start.size(), 'x'));
    ASSERT_FALSE(beyond.has_value());
    EXPECT_EQ(beyond.error().code, ErrorCode::invalid_argument);
    EXPECT_EQ(daemon.stop(), 0);
    for (const auto& lock : fs::directory_iterator(folder.path())) fs::remove(lock);
  }
  for (const std::size_t size : {108U, 109U, 300U}) {
    const std::string path = start + std::string(size - start.size(), 'x');
    const auto says_the_length = [&](const std::string& text) {
      return text.find(std::to_string(size) + " bytes") != std::string::npos &&
             text.find("107") != std::string::npos;
    };
    const auto attached = attach_at(path);
    ASSERT_FALSE(attached.has_value());
    EXPECT_EQ(attached.error().code, ErrorCode::invalid_argument);
    EXPECT_TRUE(says_the_length(attached.error().message())) << attached.error().message();
    for (const std::string role : {"socket", "admin-socket"}) {
      const std::string other = role == "socket" ? "admin-socket" : "socket";
      const ProgramResult refused = run_program(
          "hotkvd",
          {"--" + role + "=" + path, "--" + other + "=" + start + "o", "--max-bytes=16M"});
      EXPECT_EQ(refused.exit_code, 2) << refused.err;
      EXPECT_TRUE(says_the_length(refused.err)) << refused.err;
    }
    const ProgramResult tool = run_program("hotkvctl", {"status", "--admin-socket=" + path});
    EXPECT_EQ(tool.exit_code, 2) << tool.err;
    EXPECT_TRUE(says_the_length(tool.err)) << tool.err;
  }
  EXPECT_TRUE(fs::is_empty(folder.path()));
}

// FR-070: a daemon takes no path that depends on its working folder and makes nothing there;
// library and tool reach it from its folder by a relative one.
TEST(DaemonSockets, AreAbsoluteForTheDaemonAndMayBeRelativeForItsClients) {
  DaemonProcess daemon({.flags = kFlags});
  ASSERT_TRUE(daemon.wait_ready()) << daemon.err();
  const fs::path folder = fs::path(daemon.control_path()).parent_path();
  ForkedChild child([&] {
    if (::chdir(folder.c_str()) != 0) return 1;
    if (!attach_at("control.sock") || !attach_at("./control.sock")) return 2;
    if (run_program("hotkvctl", {"status", "--admin-socket=admin.sock"}).exit_code != 0) return 3;
    const ProgramResult refused =
        run_program("hotkvd", {"--socket=other.sock", "--admin-socket=" + folder.string() + "/b"});
    if (refused.exit_code != 2 || fs::exists("other.sock") || fs::exists("b")) return 4;
    return refused.err.find("\"other.sock\" is not an absolute path") != std::string::npos ? 0 : 5;
  });
  EXPECT_EQ(child.exit_code(), 0) << "the number of the check that failed";
  EXPECT_EQ(daemon.stop(), 0);
}

// Attaches with room for too few descriptors, then with enough. The number of the check that
// failed.
int attach_at_the_limit(const std::string& control_path) {
  rlimit before{};
  ::getrlimit(RLIMIT_NOFILE, &before);
  const std::size_t descriptors = open_descriptors();
  const auto limit_to = [&](int room) {
    // The first number beyond it: those in use may lie between free ones.
    std::vector<int> taken;
    for (int i = 0; i <= room; ++i) taken.push_back(::dup(STDIN_FILENO));
    const rlimit limit{static_cast<rlim_t>(taken.back()), before.rlim_max};
    for (const int fd : taken) ::close(fd);
    return ::setrlimit(RLIMIT_NOFILE, &limit) == 0;
  };
  for (int room = 0; room < 4; ++room) {  // a socket and three files
    if (!limit_to(room)) return 1;
    const auto client = attach_at(control_path);
    if (client || client.error().code != ErrorCode::system_error) return 2;
    const std::string message = client.error().message();
    if (message.find("descriptor") == std::string::npos &&
        message.find("open files") == std::string::npos) {
      return 3;
    }
    ::setrlimit(RLIMIT_NOFILE, &before);
    if (open_descriptors() != descriptors) return 4;
  }
  if (!limit_to(4)) return 5;
  if (const auto client = attach_at(control_path); !client) {
    std::fputs((client.error().message() + "\n").c_str(), stderr);
    return 5;
  }
  ::setrlimit(RLIMIT_NOFILE, &before);
  return open_descriptors() == descriptors ? 0 : 6;
}

// FR-073: descriptors that the kernel drops at the client's limit are an error that says so, cost
// neither process a descriptor, and the next try works.
TEST_F(Sockets, AClientAtItsDescriptorLimitIsToldSoAndLaterAttaches) {
  KvWorker steady(daemon_.control_path());  // so that the shard is there
  ASSERT_TRUE(steady.open("steady", 1));
  const int before = daemon_.open_descriptors();
  if (before < 0) GTEST_SKIP() << "the daemon's descriptors cannot be seen by this user";
  ForkedChild child([&] { return attach_at_the_limit(daemon_.control_path()); });
  EXPECT_EQ(child.exit_code(), 0) << "the number of the check that failed";
  EXPECT_TRUE(eventually([&] { return daemon_.open_descriptors() <= before; }));
}

// FR-077: many clients that start at once, while the daemon sleeps, are all served within the
// default deadline.
TEST_F(Sockets, AStormOfClientsIsServedThoughTheDaemonSleepsAtFirst) {
  constexpr int kClients = kIsSanitized ? 32 : 256;  // one for each page of a shard
  int ends[2];
  ASSERT_EQ(::pipe2(ends, O_CLOEXEC), 0);
  const UniqueFd start(ends[0]);
  UniqueFd not_yet(ends[1]);
  std::vector<ForkedChild> crowd;
  for (int number = 0; number < kClients; ++number) {
    crowd.emplace_back([&] {
      char nothing;
      not_yet.reset();
      if (::read(start.get(), &nothing, 1) != 0) return 3;  // ends when all are told to begin
      auto client = attach_at(daemon_.control_path());
      if (!client) return 1;
      const auto session = SessionId::from("storm-" + std::to_string(number)).value();
      return client->open(session, Epoch{1}) ? 0 : 2;
    });
  }
  daemon_.signal(SIGSTOP);
  not_yet.reset();
  std::this_thread::sleep_for(std::chrono::milliseconds(500));
  daemon_.signal(SIGCONT);
  int failed = 0;
  for (ForkedChild& child : crowd) failed += child.exit_code() != 0;
  EXPECT_EQ(failed, 0) << daemon_.err();
}

// Everything by which a name comes into a file system, and files in memory.
std::vector<FilteredCall> calls_that_make_names() {
  return {{.number = SYS_openat, .where = {{2, O_CREAT}}},
          {.number = SYS_open, .where = {{1, O_CREAT}}},
          {.number = SYS_creat},
          {.number = SYS_mkdir},
          {.number = SYS_mkdirat},
          {.number = SYS_mknod},
          {.number = SYS_mknodat},
          {.number = SYS_link},
          {.number = SYS_linkat},
          {.number = SYS_symlink},
          {.number = SYS_symlinkat},
          {.number = SYS_rename},
          {.number = SYS_renameat},
          {.number = SYS_renameat2},
          {.number = SYS_bind},
          {.number = SYS_memfd_create}};
}

// FR-091: a client's whole life makes no name in any file system: each call that would ends it.
TEST_F(Sockets, TheLibraryMakesNoFileAnywhere) {
  ForkedChild child([&] {
    if (!filter_calls(calls_that_make_names(), kKillTheProcess)) return 77;
    KvWorker worker(daemon_.control_path());
    if (!worker.open("s", 1) || !worker.append("s", 40)) return 1;
    if (!worker.client().get(SessionId::from("s").value(), Epoch{1})) return 2;
    if (!worker.context("s").truncate(TokenCount{5})) return 3;
    return worker.context("s").release() ? 0 : 4;
  });
  const int exit_code = child.exit_code();
  if (exit_code == 77) GTEST_SKIP() << "no filters of system calls here";
  EXPECT_EQ(exit_code, 0);
}

std::set<std::string> names_in(const fs::path& folder) {
  std::set<std::string> names;
  for (const auto& entry : fs::directory_iterator(folder)) names.insert(entry.path().filename());
  return names;
}

// FR-091: clients that are killed wherever they are leave nothing behind, in files or descriptors.
TEST_F(Sockets, CrashesOfClientsLeaveNothingBehind) {
  const fs::path folder = fs::path(daemon_.control_path()).parent_path();
  KvWorker steady(daemon_.control_path());  // so that the shard is there
  ASSERT_TRUE(steady.open("steady", 1));
  const auto files_before = names_in(folder);
  const int descriptors_before = daemon_.open_descriptors();
  for (int crash = 0; crash < 100; ++crash) {
    ForkedChild child([&] {
      KvWorker worker(daemon_.control_path());
      if (crash % 3 > 0 && !worker.open("s" + std::to_string(crash % 5), 1)) return 1;
      if (crash % 3 > 1 && !worker.append("s" + std::to_string(crash % 5), 20)) return 2;
      return ::raise(SIGKILL);
    });
    EXPECT_EQ(child.exit_code(), -1) << crash;
  }
  EXPECT_EQ(names_in(folder), files_before);
  EXPECT_TRUE(eventually([&] { return daemon_.open_descriptors() <= descriptors_before; }));
}

struct Policy {
  const char* denied;  // the call, as an error must name it
  FilteredCall call;
};

// FR-092: where a policy forbids a call that attaching needs, the error names the call and says
// that a policy may be the cause.
TEST_F(Sockets, ACallThatAPolicyForbidsAClientIsNamed) {
  const std::vector<Policy> policies{
      {"sendmsg", {.number = SYS_sendmsg}},
      {"recvmsg", {.number = SYS_recvmsg}},
      {"mmap", {.number = SYS_mmap, .where = {{2, PROT_WRITE}, {3, MAP_SHARED}}}}};
  for (const Policy& policy : policies) {
    ForkedChild child([&] {
      if (!filter_calls({policy.call}, fail_with(EPERM))) return 77;
      const auto client = attach_at(daemon_.control_path());
      if (client || client.error().code != ErrorCode::system_error) return 1;
      const std::string message = client.error().message();
      if (message.find(policy.denied) == std::string::npos) return 2;
      return message.find("policy") != std::string::npos ? 0 : 3;
    });
    const int exit_code = child.exit_code();
    if (exit_code == 77) GTEST_SKIP() << "no filters of system calls here";
    EXPECT_EQ(exit_code, 0) << policy.denied;
  }
}

// FR-092: a daemon that may make no memory files says so to whoever attaches, and goes on.
TEST(DaemonSockets, ACallThatAPolicyForbidsTheDaemonIsNamedToTheClient) {
  ForkedChild child([] {
    if (!filter_calls({{.number = SYS_memfd_create}}, fail_with(EPERM))) return 77;
    DaemonProcess daemon({.flags = kFlags});
    if (!daemon.wait_ready()) return 1;
    for (int attempt = 0; attempt < 3; ++attempt) {
      const auto client = attach_at(daemon.control_path());
      if (client || client.error().code != ErrorCode::system_error) return 2;
      const std::string message = client.error().message();
      if (message.find("memfd_create") == std::string::npos) return 3;
      if (message.find("policy") == std::string::npos) return 4;
    }
    return daemon.stop();
  });
  const int exit_code = child.exit_code();
  if (exit_code == 77) GTEST_SKIP() << "no filters of system calls here";
  EXPECT_EQ(exit_code, 0);
}

}  // namespace
}  // namespace hotkv::testing
