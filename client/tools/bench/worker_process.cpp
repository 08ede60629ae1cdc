#include "client/tools/bench/worker_process.hpp"

#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <csignal>
#include <utility>

namespace hotkv::bench {

WorkerProcess::WorkerProcess(const std::function<int(int socket)>& body) {
  int ends[2] = {-1, -1};
  if (::socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, ends) != 0) return;
  socket_.reset(ends[0]);
  UniqueFd child_end(ends[1]);
  const pid_t parent = ::getpid();
  pid_ = ::fork();
  if (pid_ != 0) return;
  ::prctl(PR_SET_PDEATHSIG, SIGKILL);
  if (::getppid() != parent) ::_exit(1);
  socket_.reset();
  ::_exit([&]() noexcept { return body(child_end.get()); }());  // an exception stays here
}

WorkerProcess::WorkerProcess(WorkerProcess&& other) noexcept
    : pid_(std::exchange(other.pid_, -1)), socket_(std::move(other.socket_)) {}

WorkerProcess::~WorkerProcess() {
  // Closing alone would not be seen: workers that were forked later hold this end, too.
  if (socket_) ::shutdown(socket_.get(), SHUT_RDWR);
  socket_.reset();
  if (pid_ > 0) ::waitpid(pid_, nullptr, 0);
}

}  // namespace hotkv::bench
