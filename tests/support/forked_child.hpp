#pragma once
// A child process of a test: ended by its pid, never left behind.

#include <signal.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <utility>

#include "tests/support/quiet_fork.hpp"

namespace hotkv::testing {

class ForkedChild {
 public:
  // Runs `body` in a forked child; what it returns is the exit code. The child runs no destructors
  // and no exit handlers of the parent's, ends by an exception that it does not catch, and ends
  // with the thread that made it.
  template <class Body>
  explicit ForkedChild(Body body) : ForkedChild(std::move(body), ::getpid()) {}
  ForkedChild(ForkedChild&& other) noexcept : pid_(std::exchange(other.pid_, -1)) {}
  ForkedChild& operator=(ForkedChild&&) = delete;
  ~ForkedChild() { kill_and_wait(); }

  [[nodiscard]] pid_t pid() const { return pid_; }

  // Waits for the end; -1 if it was ended by a signal.
  int exit_code() {
    int status = 0;
    if (pid_ <= 0 || ::waitpid(std::exchange(pid_, -1), &status, 0) < 0) return -1;
    return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
  }

  // Returns once the child is a stopped process.
  void stop() {
    ::kill(pid_, SIGSTOP);
    siginfo_t ignored;  // it is left to be reaped, should it have ended instead
    ::waitid(P_PID, static_cast<id_t>(pid_), &ignored, WSTOPPED | WEXITED | WNOWAIT);
  }

  void kill_and_wait() {
    if (pid_ <= 0) return;
    ::kill(pid_, SIGKILL);
    exit_code();
  }

 private:
  template <class Body>
  ForkedChild(Body body, pid_t parent) : pid_(quiet_fork()) {
    if (pid_ != 0) return;
    ::prctl(PR_SET_PDEATHSIG, SIGKILL);
    if (::getppid() != parent) ::_exit(126);
    ::_exit([&]() noexcept -> int { return body(); }());
  }

  pid_t pid_;
};

}  // namespace hotkv::testing
