#pragma once
// The control connection after its handshake: many threads ask, one thread listens.

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <deque>
#include <expected>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <unordered_map>

#include <hotkv/error.hpp>

#include "client/library/fork_guard.hpp"
#include "client/library/wire.hpp"
#include "shared/seqpacket.hpp"
#include "shared/unique_fd.hpp"

namespace hotkv::client {

// Thread-safe. Requests of many threads are under way at once, each found again by its id, so
// replies may come in any order. One watching thread receives them; it also notices a hang-up, at
// once and without anybody asking. It blocks all signals.
//
// After a hang-up (or a frame that cannot be one) every request, present and future, ends with
// daemon_unavailable and the reason. Not usable in a forked child, not even its destructor.
class Connection {
 public:
  // `socket` has its handshake behind it and is nonblocking. Every reply must carry `boot_token`.
  // Errors: system_error (eventfd, thread).
  [[nodiscard]] static std::expected<std::unique_ptr<Connection>, Error> start(
      UniqueFd socket, std::uint64_t boot_token);
  ~Connection();
  Connection(const Connection&) = delete;
  Connection& operator=(const Connection&) = delete;

  // False once the daemon hung up; never true again.
  [[nodiscard]] bool is_connected() const noexcept {
    return connected_.load(std::memory_order_acquire);
  }

  // What to do with a reply that nobody waits for any more; runs on the watching thread.
  using LateHandler = std::function<void(const Reply&)>;

 private:
  struct Waiter;

 public:
  // A request under way. Whoever drops it unawaited gives its reply up.
  class [[nodiscard]] Pending {
   public:
    Pending(Pending&&) noexcept = default;
    Pending& operator=(Pending&&) = delete;
    ~Pending();

   private:
    friend class Connection;
    Pending(Connection& connection, std::uint64_t id, std::shared_ptr<Waiter> waiter)
        : connection_(&connection), id_(id), waiter_(std::move(waiter)) {}
    Connection* connection_;
    std::uint64_t id_;
    std::shared_ptr<Waiter> waiter_;  // null once moved from or awaited
  };

  // Sends, or queues behind what the socket does not take yet: requests leave in the order of these
  // calls. Never blocks. `on_late` gets the reply if the wait for it is given up after the request
  // was sent: for requests whose success somebody must undo.
  Pending submit(Request request, LateHandler on_late = {});

  // Waits for the reply. Errors: daemon_unavailable, deadline_exceeded, system_error, or what the
  // reply says of the whole frame; results are checked for count and size.
  [[nodiscard]] std::expected<Reply, Error> await(Pending pending, Deadline deadline);

  // Sends a request whose answer interests nobody. Never blocks.
  void post(Request request);

 private:
  struct Queued {
    std::uint64_t id;
    Frame frame;
  };

  Connection(UniqueFd socket, UniqueFd wake, std::uint64_t boot_token);
  void watch();
  // Receives what is there. False if the connection is at its end.
  bool receive_all(std::span<std::byte> buffer);
  void dispatch(Reply reply);
  void end(std::string cause);
  void wake_watcher();
  void enqueue_or_send(std::uint64_t id, Frame frame);  // mutex_ is held
  void flush_queue();                                   // mutex_ is held
  void fail(std::uint64_t id, Error error);             // mutex_ is held
  [[nodiscard]] Error ended_error() const;              // mutex_ is held
  void give_up(std::uint64_t id, Waiter& waiter);       // mutex_ is held

  // Constant after start.
  const UniqueFd socket_;
  const UniqueFd wake_;  // eventfd: something is queued, or stop
  const ParentOnlyFd socket_is_parent_only_;
  const ParentOnlyFd wake_is_parent_only_;
  const std::uint64_t boot_token_;

  std::atomic<bool> connected_{true};  // watching thread writes
  std::atomic<bool> stopping_{false};  // destructor writes

  std::mutex mutex_;  // guards all below
  std::uint64_t last_id_ = 0;
  std::unordered_map<std::uint64_t, std::shared_ptr<Waiter>> waiters_;
  std::size_t abandoned_ = 0;  // waiters that only their late handler keeps
  std::deque<Queued> queue_;   // what the socket did not take yet
  std::size_t queued_bytes_ = 0;
  std::string end_cause_;

  std::thread watcher_;
};

}  // namespace hotkv::client
