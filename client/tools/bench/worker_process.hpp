#pragma once
// A worker process of the benchmark, and the socket between it and its parent.

#include <sys/types.h>

#include <functional>

#include "shared/unique_fd.hpp"

namespace hotkv::bench {

// Forked in the constructor; ends with this object: its socket shows a hang-up, and it is waited
// for. Make it before any thread.
class WorkerProcess {
 public:
  // `body` runs in the child with its end of a SOCK_SEQPACKET pair; what it returns is the exit
  // code.
  explicit WorkerProcess(const std::function<int(int socket)>& body);
  WorkerProcess(WorkerProcess&& other) noexcept;
  WorkerProcess& operator=(WorkerProcess&&) = delete;
  ~WorkerProcess();

  // The parent's end; -1 if the process could not be made.
  [[nodiscard]] int socket() const { return socket_.get(); }

 private:
  pid_t pid_ = -1;
  UniqueFd socket_;
};

}  // namespace hotkv::bench
