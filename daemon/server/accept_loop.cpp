#include "daemon/server/accept_loop.hpp"

#include <fcntl.h>
#include <poll.h>
#include <sys/socket.h>

#include <cerrno>
#include <chrono>
#include <vector>

#include <hotkv/error.hpp>

namespace hotkv::server {
namespace {

// Connections taken in one turn of the loop, so that a storm of them does not hold up the others.
constexpr int kAcceptsPerTurn = 16;
// Out of descriptors or memory, the queue stays readable and accept fails at once: without a pause
// the loop would take a whole processor. Ten tries a second are noticed soon and cost nothing.
constexpr std::chrono::milliseconds kPauseAfterError{100};

// Errors of one connection that ended before it was taken, not of the listening socket.
bool is_gone_connection(int os_errno) {
  return os_errno == ECONNABORTED || os_errno == EINTR || os_errno == EPROTO || os_errno == EPERM;
}

// Whether that many descriptors stay free if one more is taken. Tried, not reckoned: numbers that
// are in use may stand anywhere, and the limit can be changed from outside.
bool leaves_descriptors(int any_fd, unsigned spare) {
  std::vector<UniqueFd> taken;
  taken.reserve(spare + 1);
  while (taken.size() < spare + 1) {
    taken.emplace_back(::fcntl(any_fd, F_DUPFD_CLOEXEC, 0));
    if (!taken.back()) return false;
  }
  return true;
}

bool is_readable(int fd) {
  pollfd entry{.fd = fd, .events = POLLIN, .revents = 0};
  return ::poll(&entry, 1, 0) == 1;
}

}  // namespace

AcceptLoop::AcceptLoop(boost::asio::io_context& io, UniqueFd listener, std::string name,
                       unsigned spare_descriptors, EventLog& log, std::uint64_t& errors,
                       Accepted accepted)
    : listener_(io),
      pause_timer_(io),
      name_(std::move(name)),
      spare_descriptors_(spare_descriptors),
      log_(log),
      errors_(errors),
      accepted_(std::move(accepted)) {
  listener_.assign(listener.get());
  (void)listener.release();
}

AcceptLoop::~AcceptLoop() {
  stop();
}

void AcceptLoop::start() {
  wait();
}

void AcceptLoop::stop() {
  boost::system::error_code ignored;
  listener_.close(ignored);
  pause_timer_.cancel(ignored);
}

void AcceptLoop::wait() {
  if (!listener_.is_open()) return;
  listener_.async_wait(boost::asio::posix::stream_descriptor::wait_read,
                       [this](const boost::system::error_code& error) {
                         if (error == boost::asio::error::operation_aborted) return;
                         error ? pause() : accept_some();
                       });
}

// Nothing, with errno: as if the limit of descriptors were lower than it is.
UniqueFd AcceptLoop::accept_one() {
  const int listener = listener_.native_handle();
  if (leaves_descriptors(listener, spare_descriptors_)) {
    return UniqueFd(::accept4(listener, nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK));
  }
  errno = is_readable(listener) ? EMFILE : EAGAIN;
  return {};
}

void AcceptLoop::accept_some() {
  for (int taken = 0; taken < kAcceptsPerTurn && listener_.is_open();) {
    UniqueFd connection = accept_one();
    if (connection) {
      ++taken;
      accepted_(std::move(connection));
      continue;
    }
    if (errno == EAGAIN) break;
    if (is_gone_connection(errno)) {
      ++taken;
      continue;
    }
    ++errors_;
    log_.warn("accept-failed",
              "socket=" + name_ + " cause=\"" + system_error("accept on", name_).message() + "\"");
    return pause();
  }
  wait();
}

void AcceptLoop::pause() {
  pause_timer_.expires_after(kPauseAfterError);
  pause_timer_.async_wait([this](const boost::system::error_code& error) {
    if (!error) wait();
  });
}

}  // namespace hotkv::server
