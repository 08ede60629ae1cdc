#include "client/library/current_attachment.hpp"

#include <algorithm>
#include <new>
#include <thread>
#include <utility>

#include "client/library/socket_path.hpp"

namespace hotkv::client {
namespace {

// A daemon that accepts and says nothing is left alone after this long: the next try may find
// another one.
constexpr auto kTryMax = std::chrono::seconds(5);

ClientOptions with_path(ClientOptions options) {
  if (options.socket_path.empty()) options.socket_path = default_socket_path();
  return options;
}

// Spins for the few nanoseconds of a copy; steps aside where the holder was put off the processor.
class SpinLock {
 public:
  explicit SpinLock(std::atomic<bool>& held) : held_(held) {
    constexpr int kSpins = 100;
    for (int spins = 0; held_.exchange(true, std::memory_order_acquire);) {
      if (++spins % kSpins == 0) std::this_thread::yield();
    }
  }
  ~SpinLock() { held_.store(false, std::memory_order_release); }
  SpinLock(const SpinLock&) = delete;
  SpinLock& operator=(const SpinLock&) = delete;

 private:
  std::atomic<bool>& held_;
};

}  // namespace

Deadline deadline_after(std::chrono::milliseconds wait) {
  constexpr std::chrono::milliseconds kLongest = std::chrono::hours(24 * 365);
  return std::chrono::steady_clock::now() + std::min(wait, kLongest);
}

std::expected<std::shared_ptr<CurrentAttachment>, Error> CurrentAttachment::attach(
    const ClientOptions& options, const Recipe& recipe) {
  // Its guard comes before the first descriptor and mapping, so that the handlers of fork are in
  // place.
  auto self = std::make_shared<CurrentAttachment>(options, recipe);
  auto shard = attach_shard(self->options_.socket_path, recipe, options.access,
                            {deadline_after(options.deadline)});
  if (!shard) return std::unexpected(std::move(shard.error()));
  auto wakeup = Wakeup::make();
  if (!wakeup) return std::unexpected(std::move(wakeup.error()));
  auto attachment = Attachment::make(self, std::move(*shard), *wakeup);
  ComeBack come_back;
  come_back.within = options.reattach_for;
  come_back.try_once = [self, served = attachment.get(), wakeup = *wakeup]() mutable {
    return self->come_back(served, wakeup);
  };
  come_back.changed = [self](bool gave_up) { self->connection_changed(gave_up); };
  // The thread may see a hang-up at once; it changes nothing before all is in place.
  const std::lock_guard lock(self->change_mutex_);
  auto watch = Watch::start(attachment->connection(), *wakeup, std::move(come_back));
  if (!watch) return std::unexpected(std::move(watch.error()));
  attachment->watch_by(std::move(*watch));
  self->exchange(std::move(attachment));
  return self;
}

CurrentAttachment::CurrentAttachment(const ClientOptions& options, const Recipe& recipe)
    : options_(with_path(options)), recipe_(recipe) {}

void CurrentAttachment::close() {
  if (is_foreign()) return;
  std::shared_ptr<Attachment> last;
  {
    const std::lock_guard lock(change_mutex_);
    closed_ = true;
    last = exchange(nullptr);
  }
  // Its end may join the watching thread, which may be waiting for the mutex.
}

std::shared_ptr<Attachment> CurrentAttachment::get() const {
  const SpinLock lock(copying_);
  return current_;
}

std::shared_ptr<Attachment> CurrentAttachment::exchange(std::shared_ptr<Attachment> next) {
  const std::shared_ptr<Attachment> now = next;
  {
    const SpinLock lock(copying_);
    std::swap(current_, next);
  }
  // Behind the swap: whoever sees the new token gets the new memory.
  if (now != nullptr) {
    chunk_tokens_.store(now->geometry().chunk_tokens, std::memory_order_release);
    boot_token_.store(now->facts().boot_token, std::memory_order_release);
  }
  return next;
}

bool CurrentAttachment::wait_connected(std::chrono::milliseconds wait) const {
  const Deadline deadline = deadline_after(wait);
  std::unique_lock lock(wait_mutex_);
  changed_.wait_until(lock, deadline, [&] { return is_connected() || gave_up_; });
  return is_connected();
}

void CurrentAttachment::connection_changed(bool gave_up) {
  const std::lock_guard lock(wait_mutex_);
  gave_up_ = gave_up;
  changed_.notify_all();
}

std::expected<Connection*, Error> CurrentAttachment::come_back(
    Attachment*& served, const std::shared_ptr<Wakeup>& wakeup) {
  // Not by the deadline of calls, which may be far shorter than a busy daemon's answer to many.
  const HandshakeLimits limits{deadline_after(kTryMax), wakeup.get()};
  if (!served->is_lost()) {
    auto socket =
        come_back_to_shard(options_.socket_path, recipe_, options_.access, served->facts(), limits);
    if (socket) {
      served->connection().resume(std::move(*socket));
      try {
        served->settle_leases();
      } catch (const std::bad_alloc&) {
        served->connection().end("out of memory");  // and all of it again
        throw;
      }
      return &served->connection();
    }
    if (socket.error().code != ErrorCode::shard_replaced) {
      return std::unexpected(std::move(socket.error()));
    }
    served->connection().lose();
  }
  {
    const std::lock_guard lock(change_mutex_);
    if (closed_) return nullptr;
  }
  auto shard = attach_shard(options_.socket_path, recipe_, options_.access, limits);
  if (!shard) return std::unexpected(std::move(shard.error()));
  Attachment* const next = replace(*served, std::move(*shard), wakeup);
  if (next == nullptr) return nullptr;
  served = next;
  return &next->connection();
}

Attachment* CurrentAttachment::replace(Attachment& lost, AttachedShard shard,
                                       const std::shared_ptr<Wakeup>& wakeup) {
  const std::lock_guard lock(change_mutex_);  // outlives both shares below
  if (closed_) return nullptr;
  auto next = Attachment::make(shared_from_this(), std::move(shard), wakeup);
  next->watch_by(lost.release_watch());
  Attachment* const served = next.get();
  // If nobody holds anything of the lost memory, it is unmapped here and now: two arenas at a time
  // could be more than the machine has.
  exchange(std::move(next)).reset();
  return served;
}

}  // namespace hotkv::client
