#include "daemon/server/accept_loop.hpp"

#include <sys/socket.h>

#include <cerrno>
#include <chrono>

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

}  // namespace

AcceptLoop::AcceptLoop(boost::asio::io_context& io, UniqueFd listener, std::string name,
                       EventLog& log, std::uint64_t& errors, Accepted accepted)
    : listener_(io),
      pause_timer_(io),
      name_(std::move(name)),
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

void AcceptLoop::accept_some() {
  for (int taken = 0; taken < kAcceptsPerTurn && listener_.is_open();) {
    UniqueFd connection(
        ::accept4(listener_.native_handle(), nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK));
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
