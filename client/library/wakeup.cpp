#include "client/library/wakeup.hpp"

#include <poll.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <chrono>
#include <cstdint>
#include <utility>

namespace hotkv::client {
namespace {

// Rounded up, so that the last wait is no spin of waits of zero; cut to an hour, because poll
// counts in an int. Whoever waits looks at the clock again. Without a deadline: -1.
int poll_timeout_ms(std::optional<Deadline> deadline) {
  using std::chrono::milliseconds;
  if (!deadline) return -1;
  const auto left = std::chrono::ceil<milliseconds>(*deadline - std::chrono::steady_clock::now());
  return static_cast<int>(std::clamp(left, milliseconds(0), milliseconds(3'600'000)).count());
}

}  // namespace

std::expected<std::shared_ptr<Wakeup>, Error> Wakeup::make() {
  UniqueFd event(::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK));
  if (!event) return std::unexpected(system_error("eventfd", "control connection"));
  return std::make_shared<Wakeup>(ParentOnlyFd(std::move(event)));
}

void Wakeup::wake() const {
  const std::uint64_t one = 1;
  // Fails only if the counter is full, and then the thread is awake.
  [[maybe_unused]] const ssize_t written = ::write(event_.get(), &one, sizeof one);
}

void Wakeup::stop() {
  stopping_.store(true, std::memory_order_release);
  wake();
}

std::expected<short, Error> Wakeup::wait(int socket, short events,
                                         std::optional<Deadline> deadline) const {
  if (is_stopping()) return short{0};
  // poll skips an entry whose descriptor is negative.
  std::array<pollfd, 2> fds{pollfd{socket, events, 0}, pollfd{event_.get(), POLLIN, 0}};
  if (::poll(fds.data(), fds.size(), poll_timeout_ms(deadline)) < 0) {
    if (errno == EINTR) return short{0};
    return std::unexpected(system_error("poll", "control connection"));
  }
  if (fds[1].revents != 0) {
    std::uint64_t wakes = 0;
    [[maybe_unused]] const ssize_t drained = ::read(event_.get(), &wakes, sizeof wakes);
  }
  return fds[0].revents;
}

}  // namespace hotkv::client
