#include "client/library/connection.hpp"

#include <sys/socket.h>

#include <algorithm>
#include <utility>
#include <vector>

#include "shared/fault_point.hpp"

namespace hotkv::client {
namespace {

// Requests wait here only while the daemon reads nothing; some dozens of full frames are more than
// a daemon that lives would leave. Beyond it submit fails instead of growing.
constexpr std::size_t kQueuedBytesMax = std::size_t{4} << 20;
// Requests that were given up and whose success must still be undone. A daemon that answers keeps
// this near zero.
constexpr std::size_t kAbandonedMax = 1024;

Error unavailable(std::string cause) {
  return Error{ErrorCode::daemon_unavailable, "ask", "daemon", std::move(cause)};
}

}  // namespace

struct Connection::Waiter {
  protocol::Type type;
  std::uint16_t count;
  LateHandler on_late;
  bool abandoned = false;  // nobody waits; only on_late is left
  std::condition_variable done;
  std::optional<std::expected<Reply, Error>> outcome;
};

Connection::Pending::~Pending() {
  if (waiter_ == nullptr) return;
  const std::lock_guard lock(connection_->mutex_);
  connection_->give_up(id_, *waiter_);
}

Connection::Connection(ParentOnlyFd socket, std::uint64_t boot_token,
                       std::shared_ptr<Wakeup> wakeup)
    : boot_token_(boot_token), wakeup_(std::move(wakeup)), socket_(std::move(socket)) {}

Connection::~Connection() {
  // Late handlers may hold leases, whose end calls post().
  end("this client detached");
}

Connection::Pending Connection::submit(Request request, LateHandler on_late) {
  auto waiter = std::make_shared<Waiter>();
  waiter->type = request.type();
  waiter->count = request.count();
  waiter->on_late = std::move(on_late);
  const std::lock_guard lock(mutex_);
  const std::uint64_t id = ++last_id_;
  waiters_.emplace(id, waiter);
  if (!is_connected()) {
    fail(id, ended_error());
  } else if (queued_bytes_ > kQueuedBytesMax) {
    fail(id, Error{ErrorCode::deadline_exceeded, "ask", "daemon", "it takes no more requests"});
  } else {
    enqueue_or_send(id, std::move(request).seal(id));
  }
  return Pending(*this, id, std::move(waiter));
}

std::expected<Reply, Error> Connection::await(Pending pending, Deadline deadline) {
  const std::shared_ptr<Waiter> waiter = std::move(pending.waiter_);
  std::unique_lock lock(mutex_);
  if (!waiter->done.wait_until(lock, deadline, [&] { return waiter->outcome.has_value(); })) {
    give_up(pending.id_, *waiter);
    return std::unexpected(
        Error{ErrorCode::deadline_exceeded, "ask", "daemon", "no answer in time"});
  }
  return std::move(*waiter->outcome);
}

void Connection::post(Request request) {
  const std::lock_guard lock(mutex_);
  if (!is_connected()) return;
  const std::uint64_t id = ++last_id_;
  enqueue_or_send(id, std::move(request).seal(id));
}

void Connection::enqueue_or_send(std::uint64_t id, Frame frame) {
  queued_bytes_ += frame.size();
  queue_.push_back({id, std::move(frame)});
  flush_queue();
  HOTKV_FAULT_POINT("ask.after-send");
  if (!queue_.empty()) wakeup_->wake();
}

void Connection::flush_queue() {
  while (!queue_.empty()) {
    const auto sent = send_frame(socket_.get(), queue_.front().frame);
    // A closed socket is the watching thread's to notice: frames may still lie in it to be read.
    if (sent && *sent == FrameOutcome::would_block) return;
    if (!sent) fail(queue_.front().id, sent.error());
    queued_bytes_ -= queue_.front().frame.size();
    queue_.pop_front();
  }
}

void Connection::fail(std::uint64_t id, Error error) {
  const auto found = waiters_.find(id);
  if (found == waiters_.end()) return;
  found->second->outcome.emplace(std::unexpected(std::move(error)));
  found->second->done.notify_all();
  waiters_.erase(found);
}

Error Connection::ended_error() const {
  return unavailable(since_then_.empty() ? end_cause_ : end_cause_ + "; " + since_then_);
}

void Connection::give_up(std::uint64_t id, Waiter& waiter) {
  if (waiter.outcome) return;
  const auto queued = std::ranges::find(queue_, id, &Queued::id);
  if (queued != queue_.end()) {  // it was never sent, so it will not happen
    queued_bytes_ -= queued->frame.size();
    queue_.erase(queued);
  } else if (waiter.on_late && abandoned_ < kAbandonedMax) {
    waiter.abandoned = true;
    ++abandoned_;
    return;
  }
  waiters_.erase(id);
}

void Connection::serve(std::span<std::byte> buffer) {
  if (!receive_all(buffer)) return;
  const std::lock_guard lock(mutex_);
  flush_queue();
}

bool Connection::has_queue() {
  const std::lock_guard lock(mutex_);
  return !queue_.empty();
}

bool Connection::receive_all(std::span<std::byte> buffer) {
  for (;;) {
    // Without room for descriptors: none comes after the handshake, so none can fill our table.
    const auto received = receive_frame(socket_.get(), buffer);
    if (!received) {
      end(received.error().message());
      return false;
    }
    if (received->outcome == FrameOutcome::would_block) return true;
    if (received->outcome == FrameOutcome::closed) {
      end("the daemon hung up");
      return false;
    }
    auto reply = Reply::parse(buffer.first(received->size_bytes));
    if (!reply) {
      end(reply.error().message());
      return false;
    }
    // No request has id 0: the daemon says why it is about to hang up.
    if (reply->header().request_id == 0 && reply->is_failure()) {
      end(reply->failure().message());
      return false;
    }
    if (reply->header().boot_token != boot_token_) {
      end("a reply carried the boot token of another shard");
      return false;
    }
    dispatch(std::move(*reply));
  }
}

void Connection::dispatch(Reply reply) {
  // Outlives the lock: letting a late handler go can end leases, which calls post().
  std::shared_ptr<Waiter> waiter;
  {
    const std::lock_guard lock(mutex_);
    const auto found = waiters_.find(reply.header().request_id);
    if (found == waiters_.end()) return;  // given up meanwhile
    waiter = std::move(found->second);
    waiters_.erase(found);
    const auto checked =
        reply.check(waiter->type, waiter->count, sizeof(protocol::OperationResult));
    if (!waiter->abandoned) {
      if (checked) {
        waiter->outcome.emplace(std::move(reply));
      } else {
        waiter->outcome.emplace(std::unexpected(checked.error()));
      }
      waiter->done.notify_all();
      return;
    }
    --abandoned_;
    if (!checked) return;
  }
  waiter->on_late(reply);
}

void Connection::end(std::string cause) {
  std::unordered_map<std::uint64_t, std::shared_ptr<Waiter>> ended;
  {
    const std::lock_guard lock(mutex_);
    if (connected_.load(std::memory_order_relaxed)) {
      end_cause_ = std::move(cause);
      since_then_.clear();
    }
    connected_.store(false, std::memory_order_release);
    // So that the daemon sees it even if a forked child has kept a copy of the descriptor.
    if (socket_) ::shutdown(socket_.get(), SHUT_RDWR);
    socket_ = {};
    ended = std::exchange(waiters_, {});
    abandoned_ = 0;
    queue_.clear();
    queued_bytes_ = 0;
    for (auto& [id, waiter] : ended) {
      waiter->outcome.emplace(std::unexpected(ended_error()));
      waiter->done.notify_all();
    }
  }
  // The waiters, and with them late handlers, are let go without the mutex: they may call post().
}

void Connection::explain(std::string cause) {
  const std::lock_guard lock(mutex_);
  since_then_ = std::move(cause);
}

void Connection::resume(ParentOnlyFd socket) {
  const std::lock_guard lock(mutex_);
  socket_ = std::move(socket);
  connected_.store(true, std::memory_order_release);
}

void Connection::lose() {
  lost_.store(true, std::memory_order_release);
  explain("the daemon came back with other memory");
}

}  // namespace hotkv::client
