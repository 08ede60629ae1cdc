#pragma once
// The requests of one attachment: many threads ask, one thread listens.

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <deque>
#include <expected>
#include <functional>
#include <memory>
#include <mutex>
#include <span>
#include <string>
#include <unordered_map>

#include <hotkv/error.hpp>

#include "client/library/fork_guard.hpp"
#include "client/library/wakeup.hpp"
#include "client/library/wire.hpp"
#include "shared/seqpacket.hpp"

namespace hotkv::client {

// Thread-safe. Requests of many threads are under way at once, each found again by its id, so
// replies may come in any order. The watching thread (watch.hpp) receives them; it also notices a
// hang-up, at once and without anybody asking.
//
// After a hang-up (or a frame that cannot be one) every request under way ends with
// daemon_unavailable and the reason, and so does each new one at once, until resume() brings
// another socket to the same daemon's memory. Nothing is sent a second time: whoever waited was
// told, and leases are settled from what memory says (LeaseTable::settle).
//
// It belongs to one life of the shard's memory. When that is over it ends for good: a request about
// the old memory can never be answered by the new.
class Connection {
 public:
  // `socket` has its handshake behind it and is nonblocking. Every reply must carry `boot_token`.
  Connection(ParentOnlyFd socket, std::uint64_t boot_token, std::shared_ptr<Wakeup> wakeup);
  ~Connection();
  Connection(const Connection&) = delete;
  Connection& operator=(const Connection&) = delete;

  [[nodiscard]] bool is_connected() const noexcept {
    return connected_.load(std::memory_order_acquire);
  }
  // Whether the daemon came back with other memory. Never false again.
  [[nodiscard]] bool is_lost() const noexcept { return lost_.load(std::memory_order_acquire); }

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

  // Sends a request whose answer interests nobody. Never blocks. Without a connection it is
  // dropped.
  void post(Request request);

  // ---- of the watching thread -------------------------------------------------------------------

  [[nodiscard]] int socket() const { return socket_.get(); }  // -1: none
  // Receives what is there and sends what waits. Ends the connection where that is due.
  void serve(std::span<std::byte> buffer);
  // Whether something waits until the socket takes it.
  [[nodiscard]] bool has_queue();
  // Hangs up and ends all requests. Only the first cause counts, until resume().
  void end(std::string cause);
  // Says, until resume(), what more is known of why there is no connection.
  void explain(std::string cause);
  void resume(ParentOnlyFd socket);
  void lose();

 private:
  struct Queued {
    std::uint64_t id;
    Frame frame;
  };

  // False if the connection is at its end.
  bool receive_all(std::span<std::byte> buffer);
  void dispatch(Reply reply);
  void enqueue_or_send(std::uint64_t id, Frame frame);  // mutex_ is held
  void flush_queue();                                   // mutex_ is held
  void fail(std::uint64_t id, Error error);             // mutex_ is held
  [[nodiscard]] Error ended_error() const;              // mutex_ is held
  void give_up(std::uint64_t id, Waiter& waiter);       // mutex_ is held

  const std::uint64_t boot_token_;
  const std::shared_ptr<Wakeup> wakeup_;

  // On a line of their own: every resolve and publish reads them, every request writes what is
  // below. The watching thread writes, connected_ with mutex_ held. Neither publishes anything: a
  // call that reads the old value is one that came before the change.
  alignas(64) std::atomic<bool> connected_{true};
  std::atomic<bool> lost_{false};

  alignas(64) std::mutex mutex_;  // guards all below
  // Changed by the watching thread only, which therefore reads it without the mutex.
  ParentOnlyFd socket_;
  std::uint64_t last_id_ = 0;
  std::unordered_map<std::uint64_t, std::shared_ptr<Waiter>> waiters_;
  std::size_t abandoned_ = 0;  // waiters that only their late handler keeps
  std::deque<Queued> queue_;   // what the socket did not take yet
  std::size_t queued_bytes_ = 0;
  std::string end_cause_;
  std::string since_then_;  // what became of coming back
};

}  // namespace hotkv::client
