#pragma once
// The daemon, and other programs of the project, as processes of their own.

#include <sys/types.h>

#include <chrono>
#include <filesystem>
#include <string>
#include <vector>

#include "daemon/platform/descriptor_store.hpp"
#include "shared/unique_fd.hpp"
#include "tests/support/eventually.hpp"

namespace hotkv::testing {

// A folder of its own for one test, removed with what is in it.
class TemporaryDirectory {
 public:
  TemporaryDirectory();
  ~TemporaryDirectory();
  TemporaryDirectory(const TemporaryDirectory&) = delete;
  TemporaryDirectory& operator=(const TemporaryDirectory&) = delete;
  [[nodiscard]] const std::filesystem::path& path() const { return path_; }

 private:
  std::filesystem::path path_;
};

struct ProgramResult {
  int exit_code = -1;  // -1: ended by a signal, or did not end in time
  std::string out;
  std::string err;
};
// Runs a program of the build to its end, or for so long.
[[nodiscard]] ProgramResult run_program(const std::string& name,
                                        const std::vector<std::string>& arguments,
                                        std::chrono::seconds patience = std::chrono::seconds(10));

// A program of the build that goes on beside the test. Killed and reaped with this object.
class ProgramProcess {
 public:
  ProgramProcess(const std::string& name, const std::vector<std::string>& arguments);
  ~ProgramProcess();
  ProgramProcess(const ProgramProcess&) = delete;
  ProgramProcess& operator=(const ProgramProcess&) = delete;

  [[nodiscard]] pid_t pid() const { return pid_; }
  [[nodiscard]] bool has_ended() const;
  // SIGSTOP; returns once every thread of it is stopped.
  void stop() const;
  void signal(int number) const;
  // Its exit code, once it has ended: -1 if by a signal, or not within ten seconds.
  int wait_exit();
  // SIGKILL, and waits.
  void kill();
  // What it has written so far.
  [[nodiscard]] std::string out() const;
  [[nodiscard]] std::string err() const;

 private:
  TemporaryDirectory directory_;
  UniqueFd ended_;  // readable once it has ended
  pid_t pid_ = -1;  // -1: reaped
};

struct DaemonOptions {
  std::vector<std::string> flags{};           // beside those for sockets
  std::filesystem::path directory{};          // of the sockets; empty: a new one
  std::string control_name = "control.sock";  // of the control socket in it
  unsigned descriptors_max = 0;               // RLIMIT_NOFILE; 0: as it is
  std::size_t kept_descriptors_max = 4096;    // as FileDescriptorStoreMax=
  std::string program = "hotkvd";             // of the build
  std::vector<std::string> variables{};       // NAME=value, beside the ones of the test
  std::filesystem::path group{};              // folder of the cgroup it is in; empty: the test's
  int err = -1;                               // its stderr, which err() then does not see
};

// hotkvd in a private folder. Killed and reaped with this object, whatever the test did.
class DaemonProcess {
 public:
  using Options = DaemonOptions;

  // Starts it; wait_ready() tells whether it came up.
  explicit DaemonProcess(DaemonOptions options = {});
  ~DaemonProcess();
  DaemonProcess(const DaemonProcess&) = delete;
  DaemonProcess& operator=(const DaemonProcess&) = delete;

  // Waits for its READY=1. False if it ended instead, or if it takes longer than ten seconds.
  [[nodiscard]] bool wait_ready();

  // How many of the messages to its service manager that have come since wait_ready(), and were not
  // counted yet, hold a text.
  [[nodiscard]] std::size_t notifications(const std::string& text) const;

  [[nodiscard]] pid_t pid() const { return pid_; }
  [[nodiscard]] const std::string& control_path() const { return control_path_; }
  [[nodiscard]] std::string admin_path() const { return (directory_ / "admin.sock").string(); }
  // How many descriptors it has open; -1 if that cannot be seen.
  [[nodiscard]] int open_descriptors() const;

  // This object is its service manager: what it has given into the store so far.
  [[nodiscard]] platform::DescriptorStore& store();
  // After it has ended, in whatever way: starts it anew with all that is in the store. Its output
  // goes on where it was.
  void start_again();
  // For the next start.
  void set_flags(std::vector<std::string> flags) { options_.flags = std::move(flags); }
  void set_program(std::string program) { options_.program = std::move(program); }
  void set_variables(std::vector<std::string> variables) {
    options_.variables = std::move(variables);
  }
  // Whether it has ended; it is left to be reaped.
  [[nodiscard]] bool has_ended() const;

  void signal(int number) const;
  // Its exit code, once it has ended: -1 if by a signal, or not within ten seconds.
  int wait_exit();
  // SIGTERM, and the exit code.
  int stop();
  // SIGKILL, and waits.
  void kill();

  // What it has written to stderr so far.
  [[nodiscard]] std::string err() const;

 private:
  DaemonOptions options_;
  TemporaryDirectory own_directory_;
  std::filesystem::path directory_;
  std::string control_path_;
  UniqueFd notify_;                          // where it says READY=1
  mutable platform::DescriptorStore store_;  // looking at messages takes them in
  UniqueFd ended_;                           // readable once it has ended
  pid_t pid_ = -1;                           // -1: reaped
};

}  // namespace hotkv::testing
