#pragma once
// What ends the watching thread's sleep.

#include <atomic>
#include <expected>
#include <memory>
#include <optional>
#include <utility>

#include <hotkv/error.hpp>

#include "client/library/fork_guard.hpp"
#include "shared/seqpacket.hpp"

namespace hotkv::client {

// Thread-safe, but for wait(), which is the watching thread's.
class Wakeup {
 public:
  // Errors: system_error (eventfd).
  [[nodiscard]] static std::expected<std::shared_ptr<Wakeup>, Error> make();
  explicit Wakeup(ParentOnlyFd event) : event_(std::move(event)) {}

  // Ends the present wait, or the next one.
  void wake() const;
  // The same for good: every later wait ends at once.
  void stop();
  [[nodiscard]] bool is_stopping() const { return stopping_.load(std::memory_order_acquire); }

  // Until one of `events` of the socket is there, or its other side is gone, or wake(), or the
  // deadline. Without a socket (-1) it is a sleep. The socket's events that came. Errors:
  // system_error.
  [[nodiscard]] std::expected<short, Error> wait(int socket, short events,
                                                 std::optional<Deadline> deadline) const;

 private:
  const ParentOnlyFd event_;
  std::atomic<bool> stopping_{false};
};

}  // namespace hotkv::client
