// Folders in which the daemon cannot make its sockets.

#include <gtest/gtest.h>
#include <sys/mount.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <filesystem>
#include <string>
#include <vector>

#include "tests/support/daemon_process.hpp"
#include "tests/support/raw_client.hpp"

namespace hotkv::testing {
namespace {

namespace fs = std::filesystem;

// A file system of its own on a folder, as small as it is told to be; gone with this object.
class TinyFilesystem {
 public:
  explicit TinyFilesystem(const std::string& options) {
    mounted_ = ::mount("hotkv-test", folder_.path().c_str(), "tmpfs", MS_NODEV | MS_NOEXEC,
                       options.c_str()) == 0;
    if (!mounted_) cause_ = std::strerror(errno);
  }
  ~TinyFilesystem() {
    if (mounted_) ::umount2(folder_.path().c_str(), MNT_DETACH);
  }
  TinyFilesystem(const TinyFilesystem&) = delete;
  TinyFilesystem& operator=(const TinyFilesystem&) = delete;

  [[nodiscard]] bool is_mounted() const { return mounted_; }
  [[nodiscard]] const std::string& cause() const { return cause_; }
  [[nodiscard]] const fs::path& path() const { return folder_.path(); }
  void make_read_only() const {
    ASSERT_EQ(::mount(nullptr, path().c_str(), nullptr, MS_REMOUNT | MS_RDONLY, nullptr), 0);
  }

 private:
  TemporaryDirectory folder_;
  bool mounted_ = false;
  std::string cause_;
};

ProgramResult start_in(const fs::path& folder, const std::string& admin_folder = "") {
  const fs::path admin = admin_folder.empty() ? folder : fs::path(admin_folder);
  return run_program("hotkvd", {"--max-bytes=16M", "--hugepages=off",
                                "--socket=" + (folder / "control.sock").string(),
                                "--admin-socket=" + (admin / "admin.sock").string()});
}

// One line that names the path and the cause, and an exit code that is not a success.
void expect_one_clear_line(const ProgramResult& result, const fs::path& folder,
                           const std::string& cause) {
  EXPECT_GT(result.exit_code, 0) << result.err;
  EXPECT_EQ(std::ranges::count(result.err, '\n'), 1) << result.err;
  EXPECT_NE(result.err.find((folder / "").string()), std::string::npos) << result.err;
  EXPECT_NE(result.err.find(cause), std::string::npos) << result.err;
}

std::size_t sockets_in(const fs::path& folder) {
  return static_cast<std::size_t>(std::ranges::count_if(
      fs::directory_iterator(folder), [](const auto& entry) { return entry.is_socket(); }));
}

// FR-140: what was denied, on which path, and by what.
TEST(SocketFolder, ThatIsReadOnlyIsNamed) {
  const TinyFilesystem folder("size=64k");
  if (!folder.is_mounted()) GTEST_SKIP() << "cannot mount: " << folder.cause();
  folder.make_read_only();
  expect_one_clear_line(start_in(folder.path()), folder.path(), "Read-only file system");
  EXPECT_TRUE(fs::is_empty(folder.path()));
}

// Full after the folder itself, after the first lock, the first socket, the second lock.
TEST(SocketFolder, ThatIsFullAtAnyStepIsNamedAndNoSocketStays) {
  constexpr int kInodesOfBothSocketsAndLocks = 5;
  for (int inodes = 1; inodes <= kInodesOfBothSocketsAndLocks; ++inodes) {
    const TinyFilesystem folder("size=4k,nr_inodes=" + std::to_string(inodes));
    if (!folder.is_mounted()) GTEST_SKIP() << "cannot mount: " << folder.cause();
    if (inodes < kInodesOfBothSocketsAndLocks) {
      expect_one_clear_line(start_in(folder.path()), folder.path(), "No space left on device");
      EXPECT_EQ(sockets_in(folder.path()), 0U) << inodes;
      continue;
    }
    DaemonProcess daemon(
        {.flags = {"--max-bytes=16M", "--hugepages=off"}, .directory = folder.path()});
    ASSERT_TRUE(daemon.wait_ready()) << daemon.err();
    EXPECT_EQ(RawClient(daemon.control_path()).hello().header.status, 0U);
    EXPECT_EQ(daemon.stop(), 0);
    EXPECT_EQ(sockets_in(folder.path()), 0U);
  }
}

// The control socket is there already when the admin socket's folder turns out to be missing.
TEST(SocketFolder, ThatIsMissingForTheSecondSocketTakesTheFirstAwayAgain) {
  const TemporaryDirectory folder;
  const ProgramResult result = start_in(folder.path(), "/nowhere-at-all");
  expect_one_clear_line(result, "/nowhere-at-all", "does not exist");
  EXPECT_EQ(sockets_in(folder.path()), 0U);
}

}  // namespace
}  // namespace hotkv::testing
