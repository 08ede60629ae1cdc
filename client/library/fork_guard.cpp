#include "client/library/fork_guard.hpp"

#include <pthread.h>
#include <unistd.h>

#include <algorithm>
#include <mutex>
#include <vector>

namespace hotkv::client {
namespace {

// Never destroyed: a thread may fork while the process is ending.
struct ForkState {
  std::mutex mutex;
  std::vector<int> parent_only_fds;  // guarded by mutex
};

ForkState& fork_state() {
  static auto* const state = new ForkState;
  return *state;
}

void before_fork() {
  fork_state().mutex.lock();
}

void after_fork_in_parent() {
  fork_state().mutex.unlock();
}

// Only what is safe in the child of a process with many threads: the mutex is held by this thread.
void after_fork_in_child() {
  ForkState& state = fork_state();
  for (const int fd : state.parent_only_fds) ::close(fd);
  state.parent_only_fds.clear();
  fork_depth.fetch_add(1, std::memory_order_relaxed);
  state.mutex.unlock();
}

void install_handlers() {
  static const int installed =
      pthread_atfork(&before_fork, &after_fork_in_parent, &after_fork_in_child);
  static_cast<void>(installed);
}

}  // namespace

ForkGuard::ForkGuard() {
  install_handlers();
  depth_ = fork_depth.load(std::memory_order_relaxed);
}

ForkExclusion::ForkExclusion() {
  fork_state().mutex.lock();
}
ForkExclusion::~ForkExclusion() {
  fork_state().mutex.unlock();
}

ParentOnlyFd::ParentOnlyFd(UniqueFd fd) : fd_(std::move(fd)) {
  const std::lock_guard lock(fork_state().mutex);
  if (fd_) fork_state().parent_only_fds.push_back(fd_.get());
}

ParentOnlyFd& ParentOnlyFd::operator=(ParentOnlyFd&& other) noexcept {
  if (this == &other) return *this;
  close();
  fd_ = std::move(other.fd_);
  return *this;
}

void ParentOnlyFd::close() {
  if (!fd_) return;
  // One step for a fork: a child must not close a number that is somebody else's by then.
  const std::lock_guard lock(fork_state().mutex);
  std::erase(fork_state().parent_only_fds, fd_.get());
  fd_.reset();
}

}  // namespace hotkv::client
