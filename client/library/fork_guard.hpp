#pragma once
// What a fork does to this library's objects: nothing in the parent; in the child they are inert.
//
// The mappings are not in a forked child, the watching thread neither, and any mutex may have been
// held by a thread that does not exist there. So every public call first asks is_foreign(), which
// is one load, and a child neither locks, touches nor destroys what it inherited.
//
// Works for fork(). A child made by a bare clone system call or _Fork() runs no handlers and must
// not use inherited objects.

#include <atomic>
#include <cstdint>
#include <utility>

#include "shared/unique_fd.hpp"

namespace hotkv::client {

// Forks that lie between this process and the one that loaded the library; written only by the
// handler in a fresh child, which has one thread.
inline std::atomic<std::uint32_t> fork_depth{0};

// Remembers the process that made it.
class ForkGuard {
 public:
  ForkGuard();
  // Is this another process than the one that made the guard?
  [[nodiscard]] bool is_foreign() const noexcept {
    return fork_depth.load(std::memory_order_relaxed) != depth_;
  }

 private:
  std::uint32_t depth_;
};

// While one lives no thread of this process can fork: for the moments in which a child would
// inherit a descriptor or a mapping that holds the lock on this client's page. Not for anything
// that blocks.
class ForkExclusion {
 public:
  ForkExclusion();
  ~ForkExclusion();
  ForkExclusion(const ForkExclusion&) = delete;
  ForkExclusion& operator=(const ForkExclusion&) = delete;
};

// A descriptor that a forked child closes at once. A child that kept the control socket open would
// hide from the daemon that the parent hung up. Move-only.
class ParentOnlyFd {
 public:
  ParentOnlyFd() = default;  // none
  explicit ParentOnlyFd(UniqueFd fd);
  ParentOnlyFd(ParentOnlyFd&& other) noexcept : fd_(std::move(other.fd_)) {}
  ParentOnlyFd& operator=(ParentOnlyFd&& other) noexcept;
  ~ParentOnlyFd() { close(); }

  [[nodiscard]] int get() const { return fd_.get(); }
  [[nodiscard]] explicit operator bool() const { return static_cast<bool>(fd_); }

 private:
  void close();
  UniqueFd fd_;
};

}  // namespace hotkv::client
