#include "client/library/watch.hpp"

#include <poll.h>
#include <pthread.h>
#include <signal.h>

#include <algorithm>
#include <cerrno>
#include <new>
#include <random>
#include <string>
#include <system_error>
#include <utility>
#include <vector>

#include "client/library/backoff.hpp"

namespace hotkv::client {
namespace {

using std::chrono::steady_clock;

// A connection that stood this long was a good one: the next loss begins with short delays. One
// that ends sooner goes on with longer ones, or a client that the daemon throws out each time would
// come back a hundred times a second.
constexpr auto kSettledAfter = std::chrono::seconds(5);

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

// Unlike in every process and for every client; the device may be out of reach in a sandbox.
std::uint64_t random_seed(const void* self) {
  std::uint64_t seed = static_cast<std::uint64_t>(steady_clock::now().time_since_epoch().count()) ^
                       reinterpret_cast<std::uintptr_t>(self);
  try {
    std::random_device device;
    seed ^= std::uint64_t{device()} << 32 ^ device();
  } catch (const std::exception&) {
  }
  return seed;
}

// SplitMix64: any seed is good, one word of state.
std::uint64_t next_random(std::uint64_t& state) {
  state += 0x9e37'79b9'7f4a'7c15;
  std::uint64_t mixed = state;
  mixed = (mixed ^ mixed >> 30) * 0xbf58'476d'1ce4'e5b9;
  mixed = (mixed ^ mixed >> 27) * 0x94d0'49bb'1331'11eb;
  return mixed ^ mixed >> 31;
}

// What only another daemon, or another configuration of it, will answer otherwise.
bool is_lasting(ErrorCode code) {
  switch (code) {
    case ErrorCode::unsupported_version:
    case ErrorCode::incompatible_recipe:
    case ErrorCode::uncertified_architecture:
    case ErrorCode::access_denied:
    case ErrorCode::shard_damaged:
    case ErrorCode::invalid_argument: return true;
    default: return false;
  }
}

// Short enough for a std::string to hold it without memory.
constexpr const char* kNoMemory = "out of memory";

Deadline add(Deadline from, std::chrono::milliseconds wait) {
  return from + std::min<std::chrono::milliseconds>(wait, std::chrono::hours(24 * 365 * 10));
}

}  // namespace

std::expected<std::unique_ptr<Watch>, Error> Watch::start(Connection& connection,
                                                          std::shared_ptr<Wakeup> wakeup,
                                                          ComeBack come_back) {
  std::unique_ptr<Watch> watch(new Watch(connection, std::move(wakeup), std::move(come_back)));
  try {
    const AllSignalsBlocked blocked;
    watch->thread_ = std::thread([self = watch.get()] { self->run(); });
  } catch (const std::system_error& failure) {
    return std::unexpected(
        system_error("start thread", "control connection", failure.code().value()));
  }
  pthread_setname_np(watch->thread_.native_handle(), "hotkv-watch");
  return watch;
}

Watch::Watch(Connection& connection, std::shared_ptr<Wakeup> wakeup, ComeBack come_back)
    : wakeup_(std::move(wakeup)),
      come_back_(std::move(come_back)),
      connection_(&connection),
      buffer_(protocol::kFrameBytesMax),
      random_state_(random_seed(this)) {}

Watch::~Watch() {
  wakeup_->stop();
  if (thread_.joinable()) thread_.join();
}

void Watch::run() {
  for (;;) {
    const auto served_since = steady_clock::now();
    try {
      serve();
    } catch (const std::bad_alloc&) {  // the process has other threads, which may get along
      connection_->end(kNoMemory);
    }
    if (wakeup_->is_stopping() || !come_back(served_since)) return;
  }
}

std::expected<Connection*, Error> Watch::try_once() const {
  try {
    return come_back_.try_once();
  } catch (const std::bad_alloc&) {
    return std::unexpected(Error{ErrorCode::system_error, {}, {}, kNoMemory, ENOMEM});
  }
}

void Watch::serve() {
  while (connection_->is_connected() && !wakeup_->is_stopping()) {
    const short events = connection_->has_queue() ? POLLIN | POLLOUT : POLLIN;
    const auto came = wakeup_->wait(connection_->socket(), events, std::nullopt);
    if (!came) return connection_->end(came.error().message());
    if (!wakeup_->is_stopping()) connection_->serve(buffer_);
  }
}

void Watch::sleep_until(steady_clock::time_point end) const {
  while (steady_clock::now() < end && !wakeup_->is_stopping()) {
    if (wakeup_->wait(-1, 0, end)) continue;
    std::this_thread::sleep_for(std::chrono::milliseconds(10));  // the kernel has no memory, say
  }
}

bool Watch::come_back(steady_clock::time_point served_since) {
  const auto lost_at = steady_clock::now();
  const auto give_up_at = add(lost_at, come_back_.within);
  if (lost_at - served_since >= kSettledAfter) tries_ = 0;
  std::string last = "it hung up";
  // The last try is at the end of the time, however long the delay before it would have been, and
  // however long this process stood still.
  for (bool is_last = come_back_.within.count() == 0; !is_last;) {
    sleep_until(std::min(give_up_at,
                         steady_clock::now() + retry_delay(tries_, next_random(random_state_))));
    if (wakeup_->is_stopping()) return false;
    is_last = steady_clock::now() >= give_up_at;
    const auto next = try_once();
    if (next && *next == nullptr) break;
    if (next) {
      connection_ = *next;
      ++tries_;
      if (come_back_.changed) come_back_.changed(false);
      return true;
    }
    try {
      last = next.error().message();
      connection_->explain(is_last ? "it did not come back within " +
                                         std::to_string(come_back_.within.count()) + " ms: " + last
                                   : "it has not come back yet: " + last);
    } catch (const std::bad_alloc&) {
      // What was said last stands.
    }
    tries_ = is_lasting(next.error().code) ? kSlowestTry : std::min(tries_ + 1, kSlowestTry);
  }
  if (come_back_.changed) come_back_.changed(true);
  return false;
}

}  // namespace hotkv::client
