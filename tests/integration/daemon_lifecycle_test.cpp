// How the daemon starts, refuses to start, and ends.

#include <fcntl.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <memory>
#include <string>
#include <vector>

#include "shared/seqpacket.hpp"
#include "tests/support/daemon_process.hpp"
#include "tests/support/raw_client.hpp"

namespace hotkv::testing {
namespace {

namespace fs = std::filesystem;

const std::vector<std::string> kFlags{"--max-bytes=16M", "--hugepages=off"};

// Flags for sockets in a folder, and more.
std::vector<std::string> sockets_in(const fs::path& folder,
                                    std::vector<std::string> more = kFlags) {
  more.push_back("--socket=" + (folder / "control.sock").string());
  more.push_back("--admin-socket=" + (folder / "admin.sock").string());
  return more;
}

// FR-068: a daemon that ends in order takes its sockets with it.
TEST(DaemonLifecycle, SigtermAndSigintEndItInOrderAndRemoveItsSockets) {
  for (const int signal : {SIGTERM, SIGINT}) {
    DaemonProcess daemon({.flags = kFlags});
    ASSERT_TRUE(daemon.wait_ready()) << daemon.err();
    RawClient client(daemon.control_path());
    client.hello();
    client.stay_alive(client.attach(small_recipe(), Access::write));
    daemon.signal(signal);
    EXPECT_EQ(daemon.wait_exit(), 0) << daemon.err();
    EXPECT_FALSE(client.receive().has_value());
    EXPECT_FALSE(fs::exists(daemon.control_path()));
    EXPECT_FALSE(fs::exists(daemon.admin_path()));
    EXPECT_NE(daemon.err().find("event=stop"), std::string::npos) << daemon.err();
  }
}

TEST(DaemonLifecycle, SighupIsLoggedAndOtherwiseIgnored) {
  DaemonProcess daemon({.flags = kFlags});
  ASSERT_TRUE(daemon.wait_ready()) << daemon.err();
  daemon.signal(SIGHUP);
  RawClient client(daemon.control_path());
  EXPECT_EQ(client.hello().header.status, 0U);
  EXPECT_EQ(daemon.stop(), 0);
  EXPECT_NE(daemon.err().find("sighup-ignored"), std::string::npos) << daemon.err();
}

TEST(DaemonLifecycle, TheEffectiveConfigurationIsLoggedOnceAsKeysAndValues) {
  DaemonProcess daemon({.flags = {"--max-bytes=16M", "--hugepages=off", "--session-cap=77"}});
  ASSERT_TRUE(daemon.wait_ready()) << daemon.err();
  EXPECT_EQ(daemon.stop(), 0);
  const std::string log = daemon.err();
  for (const char* part :
       {"event=config", "max_bytes=16M", "session_cap=77", "hugepages_effective=off"}) {
    EXPECT_NE(log.find(part), std::string::npos) << part << "\n" << log;
  }
}

TEST(DaemonLifecycle, SocketsAreBornWithTheirModeWhateverTheUmask) {
  const mode_t umask_before = ::umask(0);
  DaemonProcess daemon({.flags = kFlags});
  ::umask(umask_before);
  ASSERT_TRUE(daemon.wait_ready()) << daemon.err();
  for (const std::string& path : {daemon.control_path(), daemon.admin_path()}) {
    struct stat status {};
    ASSERT_EQ(::stat(path.c_str(), &status), 0);
    EXPECT_EQ(status.st_mode & 0777, 0660U) << path;
  }
  EXPECT_EQ(daemon.stop(), 0);
}

// FR-068: a daemon that was killed leaves a socket that the next one replaces.
TEST(DaemonLifecycle, AStaleSocketIsReplaced) {
  const TemporaryDirectory folder;
  DaemonProcess killed({.flags = kFlags, .directory = folder.path()});
  ASSERT_TRUE(killed.wait_ready()) << killed.err();
  killed.kill();
  ASSERT_TRUE(fs::exists(killed.control_path()));
  DaemonProcess next({.flags = kFlags, .directory = folder.path()});
  ASSERT_TRUE(next.wait_ready()) << next.err();
  EXPECT_EQ(RawClient(next.control_path()).hello().header.status, 0U);
  EXPECT_EQ(next.stop(), 0);
}

TEST(DaemonLifecycle, ALiveSocketIsNeverReplaced) {
  DaemonProcess daemon({.flags = kFlags});
  ASSERT_TRUE(daemon.wait_ready()) << daemon.err();
  const fs::path folder = fs::path(daemon.control_path()).parent_path();
  const ProgramResult second = run_program("hotkvd", sockets_in(folder));
  EXPECT_EQ(second.exit_code, 3) << second.err;
  EXPECT_NE(second.err.find("control.sock"), std::string::npos) << second.err;
  EXPECT_EQ(std::ranges::count(second.err, '\n'), 1) << second.err;
  EXPECT_EQ(RawClient(daemon.control_path()).hello().header.status, 0U);
  EXPECT_EQ(daemon.stop(), 0);
}

TEST(DaemonLifecycle, OfSeveralThatStartAtOnceExactlyOneServes) {
  const TemporaryDirectory folder;
  std::vector<std::unique_ptr<DaemonProcess>> daemons;
  for (int count = 0; count < 4; ++count) {
    daemons.push_back(std::make_unique<DaemonProcess>(
        DaemonOptions{.flags = kFlags, .directory = folder.path()}));
  }
  int serving = 0;
  for (const auto& daemon : daemons) {
    if (daemon->wait_ready()) {
      ++serving;
      EXPECT_EQ(RawClient(daemon->control_path()).hello().header.status, 0U);
    } else {
      EXPECT_EQ(daemon->wait_exit(), 3) << daemon->err();
    }
  }
  EXPECT_EQ(serving, 1);
}

TEST(DaemonLifecycle, WhatIsNoSocketIsNamedAndLeftAlone) {
  const TemporaryDirectory folder;
  const fs::path path = folder.path() / "control.sock";
  std::ofstream(path) << "precious";
  const ProgramResult result = run_program("hotkvd", sockets_in(folder.path()));
  EXPECT_EQ(result.exit_code, 3) << result.err;
  EXPECT_NE(result.err.find("a regular file"), std::string::npos) << result.err;
  EXPECT_EQ(fs::file_size(path), 8U);
}

TEST(DaemonLifecycle, APathOf107BytesServesAndOneOf108IsRefused) {
  const TemporaryDirectory folder;
  const std::string start = folder.path().string() + "/";
  const std::string fits = start + std::string(107 - start.size(), 'x');
  const std::string admin = "--admin-socket=" + start + "admin.sock";
  const ProgramResult refused =
      run_program("hotkvd", {"--socket=" + fits + "x", admin, "--max-bytes=16M"});
  EXPECT_EQ(refused.exit_code, 2) << refused.err;
  EXPECT_NE(refused.err.find("107"), std::string::npos) << refused.err;
  EXPECT_TRUE(fs::is_empty(folder.path()));

  DaemonProcess daemon(
      {.flags = kFlags, .directory = folder.path(), .control_name = fits.substr(start.size())});
  ASSERT_TRUE(daemon.wait_ready()) << daemon.err();
  EXPECT_EQ(RawClient(fits).hello().header.status, 0U);
}

TEST(DaemonLifecycle, UnknownAndContradictoryFlagsAreRefusedByName) {
  const TemporaryDirectory folder;
  const ProgramResult unknown =
      run_program("hotkvd", sockets_in(folder.path(), {"--max-byts=16M"}));
  EXPECT_EQ(unknown.exit_code, 2);
  EXPECT_NE(unknown.err.find("--max-byts"), std::string::npos) << unknown.err;
  EXPECT_NE(unknown.err.find("max-bytes"), std::string::npos) << unknown.err;
  const ProgramResult bad = run_program("hotkvd", sockets_in(folder.path(), {"--max-bytes=8e9"}));
  EXPECT_EQ(bad.exit_code, 2);
  EXPECT_NE(bad.err.find("max-bytes"), std::string::npos) << bad.err;
  EXPECT_TRUE(fs::is_empty(folder.path()));
}

TEST(DaemonLifecycle, AMissingFolderIsNamed) {
  const ProgramResult result = run_program("hotkvd", sockets_in("/nowhere-at-all"));
  EXPECT_EQ(result.exit_code, 2) << result.err;
  EXPECT_NE(result.err.find("/nowhere-at-all"), std::string::npos) << result.err;
}

// FR-043: where they are required and not to be had, the start is refused.
TEST(DaemonLifecycle, RequiredHugePagesThatCannotBeHadRefuseTheStart) {
  std::string modes;
  std::getline(std::ifstream("/sys/kernel/mm/transparent_hugepage/shmem_enabled"), modes);
  if (modes.find("[never]") == std::string::npos && modes.find("[deny]") == std::string::npos) {
    GTEST_SKIP() << "this machine has huge pages for shared memory: " << modes;
  }
  const TemporaryDirectory folder;
  const ProgramResult result =
      run_program("hotkvd", sockets_in(folder.path(), {"--max-bytes=16M", "--hugepages=require"}));
  EXPECT_EQ(result.exit_code, 2) << result.err;
  EXPECT_NE(result.err.find("shmem_enabled"), std::string::npos) << result.err;
  EXPECT_TRUE(fs::is_empty(folder.path()));
}

TEST(DaemonLifecycle, HelpVersionAndCheckEndAtOnce) {
  EXPECT_EQ(run_program("hotkvd", {"--help"}).exit_code, 0);
  EXPECT_NE(run_program("hotkvd", {"--version"}).out.find("hotkvd "), std::string::npos);
  EXPECT_EQ(run_program("hotkvd", {"--check", "--max-bytes=16M"}).exit_code, 0);
  // What a restart would be refused for: by then the memory would be gone.
  const ProgramResult beyond = run_program("hotkvd", {"--check", "--max-bytes=90T"});
  EXPECT_EQ(beyond.exit_code, 2);
  EXPECT_NE(beyond.err.find("max_bytes"), std::string::npos) << beyond.err;
}

TEST(DaemonLifecycle, KilledItLeavesTheBytesToThoseWhoMapThem) {
  DaemonProcess daemon({.flags = kFlags});
  ASSERT_TRUE(daemon.wait_ready()) << daemon.err();
  RawClient client(daemon.control_path());
  client.hello();
  const RawReply reply = client.attach(small_recipe(), Access::write);
  ASSERT_EQ(reply.descriptors.count, protocol::kAttachDescriptors);
  daemon.kill();
  EXPECT_FALSE(client.receive().has_value());
  std::uint64_t magic = 0;
  EXPECT_EQ(::pread(reply.descriptors.fds[0].get(), &magic, sizeof magic, 0),
            static_cast<ssize_t>(sizeof magic));
  EXPECT_EQ(magic, kTablesMagic);
}

}  // namespace
}  // namespace hotkv::testing
