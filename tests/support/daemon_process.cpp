#include "tests/support/daemon_process.hpp"

#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <sstream>
#include <stdexcept>
#include <string_view>
#include <thread>

namespace hotkv::testing {
namespace {

namespace fs = std::filesystem;
using Clock = std::chrono::steady_clock;

constexpr std::chrono::seconds kPatience{10};

std::string read_file(const fs::path& path) {
  std::ostringstream text;
  text << std::ifstream(path).rdbuf();
  return text.str();
}

struct Spawn {
  fs::path program;
  std::vector<std::string> arguments;
  std::vector<std::string> variables;  // NAME=value, beside the ones of this process
  fs::path out;
  fs::path err;
  unsigned descriptors_max = 0;
  const platform::DescriptorStore* store = nullptr;  // as a service manager passes what it keeps
  fs::path group{};
  int err_fd = -1;  // in place of `err`
};

// Everything is prepared before the fork, so that the child makes system calls only: another thread
// of the test may hold the allocator's lock at that moment.
pid_t spawn(Spawn what) {
  std::vector<std::string> arguments{what.program.string()};
  arguments.insert(arguments.end(), what.arguments.begin(), what.arguments.end());
  auto variables = platform::environment_without({"NOTIFY_SOCKET=", "HOTKV_", "LISTEN_"});
  variables.insert(variables.end(), what.variables.begin(), what.variables.end());
  const platform::DescriptorStore nothing(0);
  platform::ProgramWithKept program(what.store != nullptr ? *what.store : nothing, arguments,
                                    std::move(variables));
  const UniqueFd out(::open(what.out.c_str(), O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0600));
  const UniqueFd err(::open(what.err.c_str(), O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0600));
  const fs::path group_members = what.group.empty() ? fs::path() : what.group / "cgroup.procs";
  const pid_t parent = ::getpid();
  const pid_t pid = ::fork();
  if (pid != 0) return pid;
  ::prctl(PR_SET_PDEATHSIG, SIGKILL);
  // 0: the parent is outside of the pid namespace that this child begins.
  if (::getppid() != parent && ::getppid() != 0) ::_exit(126);
  ::dup2(out.get(), STDOUT_FILENO);
  ::dup2(what.err_fd >= 0 ? what.err_fd : err.get(), STDERR_FILENO);
  if (!group_members.empty()) {
    const int members = ::open(group_members.c_str(), O_WRONLY | O_CLOEXEC);
    if (::write(members, "0", 1) != 1) ::_exit(125);
  }
  if (what.descriptors_max != 0) {
    const rlimit limit{what.descriptors_max, what.descriptors_max};
    ::setrlimit(RLIMIT_NOFILE, &limit);
  }
  program.become(what.program.c_str());
  ::_exit(127);
}

UniqueFd open_pidfd(pid_t pid) {
  return UniqueFd(static_cast<int>(::syscall(SYS_pidfd_open, pid, 0)));
}

int milliseconds_until(Clock::time_point deadline) {
  const auto left = std::chrono::ceil<std::chrono::milliseconds>(deadline - Clock::now()).count();
  return static_cast<int>(std::max<std::int64_t>(left, 0));
}

// The exit code of a child once it has ended; it is killed if it does not.
int reap(pid_t pid, const UniqueFd& ended, std::chrono::seconds patience = kPatience) {
  pollfd entry{.fd = ended.get(), .events = POLLIN, .revents = 0};
  if (::poll(&entry, 1, milliseconds_until(Clock::now() + patience)) != 1) ::kill(pid, SIGKILL);
  int status = 0;
  ::waitpid(pid, &status, 0);
  return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
}

}  // namespace

TemporaryDirectory::TemporaryDirectory() {
  std::string name = (fs::temp_directory_path() / "hotkv-test-XXXXXX").string();
  if (::mkdtemp(name.data()) == nullptr) throw std::runtime_error("cannot make " + name);
  path_ = name;
}

TemporaryDirectory::~TemporaryDirectory() {
  std::error_code ignored;
  fs::remove_all(path_, ignored);
}

ProgramResult run_program(const std::string& name, const std::vector<std::string>& arguments,
                          std::chrono::seconds patience) {
  const TemporaryDirectory directory;
  const fs::path out = directory.path() / "out";
  const fs::path err = directory.path() / "err";
  const pid_t pid = spawn({.program = fs::path(HOTKV_BINARY_FOLDER) / name,
                           .arguments = arguments,
                           .variables = {},
                           .out = out,
                           .err = err});
  const int exit_code = reap(pid, open_pidfd(pid), patience);
  return {exit_code, read_file(out), read_file(err)};
}

ProgramProcess::ProgramProcess(const std::string& name, const std::vector<std::string>& arguments)
    : pid_(spawn({.program = fs::path(HOTKV_BINARY_FOLDER) / name,
                  .arguments = arguments,
                  .variables = {},
                  .out = directory_.path() / "out",
                  .err = directory_.path() / "err"})) {
  ended_ = open_pidfd(pid_);
}

ProgramProcess::~ProgramProcess() {
  kill();
}

bool ProgramProcess::has_ended() const {
  pollfd entry{.fd = ended_.get(), .events = POLLIN, .revents = 0};
  return pid_ <= 0 || ::poll(&entry, 1, 0) == 1;
}

void ProgramProcess::stop() const {
  ::kill(pid_, SIGSTOP);
  siginfo_t ignored;  // it is left to be reaped, should it have ended instead
  ::waitid(P_PID, static_cast<id_t>(pid_), &ignored, WSTOPPED | WEXITED | WNOWAIT);
}

void ProgramProcess::signal(int number) const {
  if (pid_ > 0) ::kill(pid_, number);
}

int ProgramProcess::wait_exit() {
  if (pid_ <= 0) return -1;
  return reap(std::exchange(pid_, -1), ended_);
}

void ProgramProcess::kill() {
  signal(SIGKILL);
  wait_exit();
}

std::string ProgramProcess::out() const {
  return read_file(directory_.path() / "out");
}

std::string ProgramProcess::err() const {
  return read_file(directory_.path() / "err");
}

DaemonProcess::DaemonProcess(DaemonOptions options)
    : options_(std::move(options)),
      directory_(options_.directory.empty() ? own_directory_.path() : options_.directory),
      control_path_((directory_ / options_.control_name).string()),
      notify_(
          platform::listen_for_notifications((own_directory_.path() / "notify").string()).value()),
      store_(options_.kept_descriptors_max) {
  start_again();
}

platform::DescriptorStore& DaemonProcess::store() {
  while (store_.receive(notify_.get())) {
  }
  return store_;
}

void DaemonProcess::start_again() {
  std::vector<std::string> arguments{"--socket=" + control_path(),
                                     "--admin-socket=" + admin_path()};
  arguments.insert(arguments.end(), options_.flags.begin(), options_.flags.end());
  const fs::path output = own_directory_.path() / "stderr";
  std::vector<std::string> variables = options_.variables;
  variables.push_back("NOTIFY_SOCKET=" + (own_directory_.path() / "notify").string());
  pid_ = spawn({.program = fs::path(HOTKV_BINARY_FOLDER) / options_.program,
                .arguments = arguments,
                .variables = std::move(variables),
                .out = output,
                .err = output,
                .descriptors_max = options_.descriptors_max,
                .store = &store(),
                .group = options_.group,
                .err_fd = options_.err});
  ended_ = open_pidfd(pid_);
}

DaemonProcess::~DaemonProcess() {
  kill();
}

bool DaemonProcess::wait_ready() {
  const auto deadline = Clock::now() + kPatience;
  for (;;) {
    std::array<pollfd, 2> entries{pollfd{.fd = notify_.get(), .events = POLLIN, .revents = 0},
                                  pollfd{.fd = ended_.get(), .events = POLLIN, .revents = 0}};
    if (::poll(entries.data(), entries.size(), milliseconds_until(deadline)) <= 0) return false;
    if ((entries[0].revents & POLLIN) == 0) return false;
    const auto message = store_.receive(notify_.get());
    if (message && message->find("READY=1") != std::string::npos) return true;
  }
}

std::size_t DaemonProcess::notifications(const std::string& text) const {
  std::size_t count = 0;
  while (const auto message = store_.receive(notify_.get())) {
    count += message->find(text) != std::string::npos;
  }
  return count;
}

int DaemonProcess::open_descriptors() const {
  std::error_code failure;
  int count = 0;
  fs::directory_iterator entries("/proc/" + std::to_string(pid_) + "/fd", failure);
  if (failure) return -1;
  for (const auto& entry : entries) {
    (void)entry;
    ++count;
  }
  return count;
}

bool DaemonProcess::has_ended() const {
  pollfd entry{.fd = ended_.get(), .events = POLLIN, .revents = 0};
  return ::poll(&entry, 1, 0) == 1;
}

void DaemonProcess::signal(int number) const {
  if (pid_ > 0) ::kill(pid_, number);
}

int DaemonProcess::wait_exit() {
  if (pid_ <= 0) return -1;
  return reap(std::exchange(pid_, -1), ended_);
}

int DaemonProcess::stop() {
  signal(SIGTERM);
  return wait_exit();
}

void DaemonProcess::kill() {
  signal(SIGKILL);
  wait_exit();
}

std::string DaemonProcess::err() const {
  return read_file(own_directory_.path() / "stderr");
}

}  // namespace hotkv::testing
