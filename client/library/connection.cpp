#include "client/library/connection.hpp"

#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <system_error>
#include <utility>

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

// A thread that inherits this mask takes no signal of the embedding program.
class AllSignalsBlocked {
 public:
  AllSignalsBlocked() {
    sigset_t all;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before_);
  }
  ~AllSignalsBlocked() { pthread_sigmask(SIG_SETMASK, &before_, nullptr); }
  AllSignalsBlocked(const AllSignalsBlocked&) = delete;
  AllSignalsBlocked& operator=(const AllSignalsBlocked&) = delete;

 private:
  sigset_t before_{};
};

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

Connection::Connection(UniqueFd socket, UniqueFd wake, std::uint64_t boot_token)
    : socket_(std::move(socket)),
      wake_(std::move(wake)),
      socket_is_parent_only_(socket_.get()),
      wake_is_parent_only_(wake_.get()),
      boot_token_(boot_token) {}

std::expected<std::unique_ptr<Connection>, Error> Connection::start(UniqueFd socket,
                                                                    std::uint64_t boot_token) {
  UniqueFd wake(::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK));
  if (!wake) return std::unexpected(system_error("eventfd", "control connection"));
  std::unique_ptr<Connection> connection(
      new Connection(std::move(socket), std::move(wake), boot_token));
  try {
    const AllSignalsBlocked blocked;
    connection->watcher_ = std::thread([self = connection.get()] { self->watch(); });
  } catch (const std::system_error& failure) {
    return std::unexpected(
        system_error("start thread", "control connection", failure.code().value()));
  }
  pthread_setname_np(connection->watcher_.native_handle(), "hotkv-watch");
  return connection;
}

Connection::~Connection() {
  stopping_.store(true, std::memory_order_release);
  wake_watcher();
  if (watcher_.joinable()) watcher_.join();
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
  if (!queue_.empty()) wake_watcher();
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
  return unavailable(end_cause_);
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

void Connection::wake_watcher() {
  const std::uint64_t one = 1;
  // Fails only if the counter is full, and then the thread is awake.
  [[maybe_unused]] const ssize_t written = ::write(wake_.get(), &one, sizeof one);
}

void Connection::watch() {
  std::vector<std::byte> buffer(protocol::kFrameBytesMax);
  bool want_write = false;
  for (;;) {
    const short events = want_write ? POLLIN | POLLOUT : POLLIN;
    std::array<pollfd, 2> fds{pollfd{socket_.get(), events, 0}, pollfd{wake_.get(), POLLIN, 0}};
    if (::poll(fds.data(), fds.size(), -1) < 0 && errno != EINTR) {
      return end(system_error("poll", "control connection").message());
    }
    if (stopping_.load(std::memory_order_acquire)) return;
    if (fds[1].revents != 0) {
      std::uint64_t wakes = 0;
      [[maybe_unused]] const ssize_t drained = ::read(wake_.get(), &wakes, sizeof wakes);
    }
    if (!receive_all(buffer)) return;
    const std::lock_guard lock(mutex_);
    flush_queue();
    want_write = !queue_.empty();
  }
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
    if (end_cause_.empty()) end_cause_ = std::move(cause);
    connected_.store(false, std::memory_order_release);
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

}  // namespace hotkv::client
