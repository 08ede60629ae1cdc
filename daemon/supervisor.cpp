#include "daemon/supervisor.hpp"

#include <poll.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/signalfd.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <deque>
#include <filesystem>
#include <optional>
#include <string_view>
#include <utility>

#include "daemon/platform/descriptor_store.hpp"
#include "daemon/platform/service_manager.hpp"
#include "shared/unique_fd.hpp"

namespace hotkv {
namespace {

using std::chrono::steady_clock;

constexpr auto kStartsWithin = std::chrono::seconds(60);
constexpr std::size_t kStartsMax = 8;
// Exit codes of the daemon that another start would only repeat; see main.cpp.
constexpr int kFirstLastingCode = 2;
constexpr int kLastLastingCode = 4;

int complain(const std::string& what) {
  std::fprintf(stderr, "hotkvd: supervise: %s\n", what.c_str());
  return 1;
}

// A folder that only this user enters, removed at the end.
class PrivateFolder {
 public:
  PrivateFolder() {
    std::error_code none;
    path_ = (std::filesystem::temp_directory_path(none) / "hotkvd-XXXXXX").string();
    if (::mkdtemp(path_.data()) == nullptr) path_.clear();
  }
  ~PrivateFolder() {
    std::error_code ignored;
    if (!path_.empty()) std::filesystem::remove_all(path_, ignored);
  }
  PrivateFolder(const PrivateFolder&) = delete;
  PrivateFolder& operator=(const PrivateFolder&) = delete;
  // Empty if there is none.
  [[nodiscard]] const std::string& path() const { return path_; }

 private:
  std::string path_;
};

class Supervisor {
 public:
  Supervisor(std::vector<std::string> arguments, std::size_t descriptors_max)
      : arguments_(std::move(arguments)), store_(descriptors_max) {}

  int run() {
    if (folder_.path().empty()) return complain("cannot make a folder for its socket");
    auto listening = platform::listen_for_notifications(folder_.path() + "/notify");
    if (!listening) return complain(listening.error().message());
    notify_ = *std::move(listening);
    sigset_t signals;
    sigemptyset(&signals);
    for (const int signal : {SIGCHLD, SIGTERM, SIGINT, SIGHUP}) sigaddset(&signals, signal);
    ::sigprocmask(SIG_BLOCK, &signals, nullptr);
    signals_ = UniqueFd(::signalfd(-1, &signals, SFD_CLOEXEC | SFD_NONBLOCK));
    if (!signals_) return complain("signalfd fails");
    for (;;) {
      if (start()) {
        const int status = wait_for_child();
        if (WIFEXITED(status)) {
          const int code = WEXITSTATUS(status);
          if (code == 0 || (code >= kFirstLastingCode && code <= kLastLastingCode)) return code;
        }
      } else {
        complain(std::string("cannot start the daemon: ") + std::strerror(errno));
      }
      if (ending_) return 1;
      if (is_crash_loop()) {
        return complain("the daemon ended " + std::to_string(starts_.size()) +
                        " times within a minute; giving up");
      }
      wait_for_a_signal(restart_delay(starts_.size()));
      if (ending_) return 1;
    }
  }

 private:
  bool start() {
    // What an outer manager says to this process is not for its child.
    auto variables = platform::environment_without({"NOTIFY_SOCKET=", "LISTEN_", "WATCHDOG_"});
    variables.push_back("NOTIFY_SOCKET=" + folder_.path() + "/notify");
    platform::ProgramWithKept program(store_, arguments_, std::move(variables));
    starts_.push_back(steady_clock::now());
    const pid_t parent = ::getpid();
    child_ = ::fork();
    if (child_ != 0) return child_ > 0;
    // System calls only, from here to the end.
    ::prctl(PR_SET_PDEATHSIG, SIGTERM);
    if (::getppid() != parent) ::_exit(1);
    sigset_t none;
    sigemptyset(&none);
    ::sigprocmask(SIG_SETMASK, &none, nullptr);
    program.become("/proc/self/exe");
    ::_exit(127);
  }

  // Or for so long.
  void wait_for_a_signal(std::chrono::milliseconds wait) {
    const auto end = steady_clock::now() + wait;
    while (!ending_ && steady_clock::now() < end) {
      pollfd entry{.fd = signals_.get(), .events = POLLIN, .revents = 0};
      const auto left = std::chrono::ceil<std::chrono::milliseconds>(end - steady_clock::now());
      (void)::poll(&entry, 1, static_cast<int>(left.count()));
      take_signals();
    }
  }

  void take_signals() {
    signalfd_siginfo signal{};
    while (::read(signals_.get(), &signal, sizeof signal) == sizeof signal) {
      if (signal.ssi_signo == SIGCHLD) continue;
      ending_ = ending_ || signal.ssi_signo != SIGHUP;
      if (child_ > 0) ::kill(child_, static_cast<int>(signal.ssi_signo));
    }
  }

  // How it ended, as waitpid() tells.
  int wait_for_child() {
    for (;;) {
      std::array<pollfd, 2> entries{pollfd{.fd = signals_.get(), .events = POLLIN, .revents = 0},
                                    pollfd{.fd = notify_.get(), .events = POLLIN, .revents = 0}};
      (void)::poll(entries.data(), entries.size(), -1);
      take_messages();
      take_signals();
      // As the first process of a container it has other people's children, too.
      int status = 0;
      for (pid_t ended = ::waitpid(-1, &status, WNOHANG); ended > 0;
           ended = ::waitpid(-1, &status, WNOHANG)) {
        if (ended != child_) continue;
        child_ = -1;      // its number may be another's from here on
        take_messages();  // sent before it died
        return status;
      }
    }
  }

  void take_messages() {
    while (const auto message = store_.receive(notify_.get())) {
      if (message->find("READY=1") != std::string::npos) (void)outer_.ready("supervising hotkvd");
    }
  }

  bool is_crash_loop() {
    const auto now = steady_clock::now();
    while (!starts_.empty() && now - starts_.front() > kStartsWithin) starts_.pop_front();
    return starts_.size() >= kStartsMax;
  }

  std::vector<std::string> arguments_;
  platform::DescriptorStore store_;
  platform::ServiceManager outer_;  // where this process has a manager itself
  PrivateFolder folder_;
  UniqueFd notify_;
  UniqueFd signals_;
  pid_t child_ = -1;
  bool ending_ = false;
  std::deque<steady_clock::time_point> starts_;
};

}  // namespace

std::chrono::milliseconds restart_delay(std::size_t starts_of_the_last_minute) {
  constexpr auto kFirst = std::chrono::milliseconds(100);
  constexpr auto kLongest = std::chrono::milliseconds(1000);
  constexpr std::size_t kDoublingsMax = 4;
  if (starts_of_the_last_minute <= 1) return kFirst;
  return std::min(kFirst * (1 << std::min(starts_of_the_last_minute - 1, kDoublingsMax)), kLongest);
}

int supervise(std::vector<std::string> arguments, std::size_t descriptors_max) {
  // Each is held here, and twice for a moment in the child that gets it.
  constexpr rlim_t kOthers = 64;
  rlimit limit{};
  if (::getrlimit(RLIMIT_NOFILE, &limit) != 0) return complain("getrlimit fails");
  limit.rlim_cur = limit.rlim_max;
  (void)::setrlimit(RLIMIT_NOFILE, &limit);
  if (limit.rlim_max < 2 * descriptors_max + kOthers) {
    return complain("the limit of descriptors is " + std::to_string(limit.rlim_max) + ", for " +
                    std::to_string(descriptors_max) + " kept ones it must be " +
                    std::to_string(2 * descriptors_max + kOthers) + " at least");
  }
  return Supervisor(std::move(arguments), descriptors_max).run();
}

}  // namespace hotkv
