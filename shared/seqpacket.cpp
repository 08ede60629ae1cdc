#include "shared/seqpacket.hpp"

#include <fcntl.h>
#include <poll.h>
#include <sys/socket.h>
#include <sys/time.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <limits>
#include <string>
#include <utility>

namespace hotkv {
namespace {

using std::chrono::steady_clock;

// As control messages must be aligned and a byte array need not be.
union ControlBuffer {
  std::array<char, CMSG_SPACE(sizeof(int) * kFrameDescriptorsMax)> bytes;
  cmsghdr alignment;
};

// Also when the peer closed with our frames unread (ECONNRESET) or before we could send (EPIPE).
bool is_hang_up(int os_errno) {
  return os_errno == EPIPE || os_errno == ECONNRESET;
}

Error connect_error(std::string path, int os_errno) {
  Error error = system_error("connect to", std::move(path), os_errno);
  switch (os_errno) {
    case ENOENT:
    case ENOTDIR:
    case ECONNREFUSED: error.code = ErrorCode::daemon_unavailable; break;
    case EACCES:
    case EPERM: error.code = ErrorCode::access_denied; break;
    case EAGAIN:
      error.code = ErrorCode::deadline_exceeded;
      error.cause = "the daemon's queue of connections stayed full";
      error.os_errno = 0;
      break;
    case EPROTOTYPE: error.cause = "not a SOCK_SEQPACKET socket"; break;
    default: break;
  }
  return error;
}

// A connect that finds the queue full sleeps in the kernel for this long. A timeout of zero would
// mean "for ever", hence at least a millisecond.
std::expected<void, Error> set_connect_timeout(int fd, Deadline deadline) {
  using std::chrono::microseconds;
  const auto left =
      std::clamp(std::chrono::duration_cast<microseconds>(deadline - steady_clock::now()),
                 microseconds(std::chrono::milliseconds(1)), microseconds(std::chrono::hours(24)));
  const timeval timeout{.tv_sec = left.count() / 1'000'000, .tv_usec = left.count() % 1'000'000};
  if (::setsockopt(fd, SOL_SOCKET, SO_SNDTIMEO, &timeout, sizeof timeout) != 0) {
    return std::unexpected(system_error("setsockopt", "SO_SNDTIMEO"));
  }
  return {};
}

// Takes every descriptor out of every control message, so that none stays open unseen. Those beyond
// the array are closed.
void take_descriptors(msghdr& message, ReceivedDescriptors& received) {
  for (cmsghdr* header = CMSG_FIRSTHDR(&message); header != nullptr;
       header = CMSG_NXTHDR(&message, header)) {
    if (header->cmsg_level != SOL_SOCKET || header->cmsg_type != SCM_RIGHTS) continue;
    const std::size_t count = (header->cmsg_len - CMSG_LEN(0)) / sizeof(int);
    for (std::size_t index = 0; index < count; ++index) {
      int number = -1;
      std::memcpy(&number, CMSG_DATA(header) + index * sizeof(int), sizeof(int));
      UniqueFd fd(number);
      if (received.count < received.fds.size()) received.fds[received.count++] = std::move(fd);
    }
  }
}

// recvmsg gives 0 both for an empty frame and for the end; only the end comes with a hang-up.
bool peer_hung_up(int fd) {
  pollfd poll_entry{.fd = fd, .events = POLLRDHUP, .revents = 0};
  return ::poll(&poll_entry, 1, 0) == 1 && (poll_entry.revents & (POLLRDHUP | POLLHUP)) != 0;
}

std::expected<ReceivedFrame, Error> receive(int fd, std::span<std::byte> buffer,
                                            ReceivedDescriptors* received) {
  ControlBuffer control;
  iovec part{.iov_base = buffer.data(), .iov_len = buffer.size()};
  msghdr message{};
  ssize_t size = -1;
  bool reset_seen = false;
  for (;;) {
    message = {};
    message.msg_iov = &part;
    message.msg_iovlen = 1;
    if (received != nullptr) {
      message.msg_control = control.bytes.data();
      message.msg_controllen = control.bytes.size();
    }
    size = ::recvmsg(fd, &message, MSG_DONTWAIT | MSG_CMSG_CLOEXEC | MSG_TRUNC);
    if (size >= 0) break;
    if (errno == EINTR) continue;
    // A peer that closes with our frames unread leaves this error in front of the frames it sent
    // before, for instance its reason for closing. It is reported once; what it hid comes next.
    if (errno == ECONNRESET && !std::exchange(reset_seen, true)) continue;
    if (errno == EAGAIN) return ReceivedFrame{FrameOutcome::would_block, 0};
    if (is_hang_up(errno)) return ReceivedFrame{FrameOutcome::closed, 0};
    return std::unexpected(system_error("recvmsg", "frame"));
  }

  if (received != nullptr) {
    take_descriptors(message, *received);
    if ((message.msg_flags & MSG_CTRUNC) != 0) {
      *received = {};
      return std::unexpected(
          Error{ErrorCode::system_error, "receive", "frame",
                "a descriptor was not delivered: descriptor limit or a security policy", 0});
    }
  }
  if ((message.msg_flags & MSG_TRUNC) != 0) {
    if (received != nullptr) *received = {};
    return std::unexpected(
        Error{ErrorCode::protocol_error, "receive", "frame",
              std::to_string(size) + " bytes, the limit is " + std::to_string(buffer.size()), 0});
  }
  if (size == 0 && peer_hung_up(fd)) return ReceivedFrame{FrameOutcome::closed, 0};
  return ReceivedFrame{FrameOutcome::ok, static_cast<std::size_t>(size)};
}

std::expected<void, Error> wait_for(int fd, short events, Deadline deadline) {
  pollfd poll_entry{.fd = fd, .events = events, .revents = 0};
  for (;;) {
    // Rounded up, so that the last wait does not turn into a spin of waits of zero; cut to an hour,
    // after which the loop comes round again, because poll counts in an int.
    const auto left =
        std::clamp(std::chrono::ceil<std::chrono::milliseconds>(deadline - steady_clock::now()),
                   std::chrono::milliseconds(0), std::chrono::milliseconds(3'600'000));
    const int ready = ::poll(&poll_entry, 1, static_cast<int>(left.count()));
    if (ready > 0 && (poll_entry.revents & POLLNVAL) != 0) {
      return std::unexpected(system_error("wait for", "socket", EBADF));
    }
    if (ready > 0) return {};
    if (ready < 0 && errno != EINTR) return std::unexpected(system_error("wait for", "socket"));
    if (steady_clock::now() >= deadline) {
      return std::unexpected(Error{ErrorCode::deadline_exceeded, "wait for", "socket",
                                   events == POLLIN ? "nothing came" : "nothing was taken", 0});
    }
  }
}

}  // namespace

std::expected<sockaddr_un, Error> socket_address(std::string_view path) {
  const auto refuse = [&](std::string cause) {
    return std::unexpected(Error{ErrorCode::invalid_argument, "use as socket path",
                                 std::string(path.substr(0, path.find('\0'))), std::move(cause),
                                 0});
  };
  if (path.empty()) return refuse("the path is empty");
  if (path.find('\0') != std::string_view::npos) return refuse("the path holds a zero byte");
  if (path.size() > kSocketPathBytesMax) {
    return refuse(std::to_string(path.size()) + " bytes, the limit is " +
                  std::to_string(kSocketPathBytesMax));
  }
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  std::memcpy(address.sun_path, path.data(), path.size());
  return address;
}

std::expected<UniqueFd, Error> connect_seqpacket(std::string_view path, Deadline deadline) {
  auto address = socket_address(path);
  if (!address) return std::unexpected(std::move(address.error()));
  UniqueFd fd(::socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0));
  if (!fd) return std::unexpected(system_error("make a socket for", std::string(path)));
  // A blocking connect with a send timeout, not a nonblocking one with pauses: on a full queue the
  // kernel then lets the waiting ones in as places come free, without a herd and without polling.
  for (;;) {
    if (auto set = set_connect_timeout(fd.get(), deadline); !set) {
      return std::unexpected(std::move(set.error()));
    }
    const auto* generic = reinterpret_cast<const sockaddr*>(&*address);
    if (::connect(fd.get(), generic, sizeof *address) == 0) break;
    if (errno == EINTR && steady_clock::now() < deadline) continue;
    const int os_errno = errno == EINTR ? EAGAIN : errno;
    return std::unexpected(connect_error(std::string(path), os_errno));
  }
  if (::fcntl(fd.get(), F_SETFL, O_NONBLOCK) != 0) {
    return std::unexpected(system_error("connect to", std::string(path)));
  }
  return fd;
}

std::expected<FrameOutcome, Error> send_frame(int fd, std::span<const std::byte> frame,
                                              std::span<const int> fds) {
  if (fds.size() > kFrameDescriptorsMax) {
    return std::unexpected(Error{ErrorCode::invalid_argument, "send", "frame",
                                 std::to_string(fds.size()) + " descriptors, the limit is " +
                                     std::to_string(kFrameDescriptorsMax),
                                 0});
  }
  iovec part{.iov_base = const_cast<std::byte*>(frame.data()), .iov_len = frame.size()};
  msghdr message{};
  message.msg_iov = &part;
  message.msg_iovlen = 1;
  ControlBuffer control{};
  if (!fds.empty()) {
    message.msg_control = control.bytes.data();
    message.msg_controllen = CMSG_SPACE(fds.size_bytes());
    cmsghdr* header = CMSG_FIRSTHDR(&message);
    header->cmsg_level = SOL_SOCKET;
    header->cmsg_type = SCM_RIGHTS;
    header->cmsg_len = CMSG_LEN(fds.size_bytes());
    std::memcpy(CMSG_DATA(header), fds.data(), fds.size_bytes());
  }
  for (;;) {
    if (::sendmsg(fd, &message, MSG_DONTWAIT | MSG_NOSIGNAL) >= 0) return FrameOutcome::ok;
    if (errno == EINTR) continue;
    if (errno == EAGAIN) return FrameOutcome::would_block;
    if (is_hang_up(errno)) return FrameOutcome::closed;
    Error error = system_error("sendmsg", "frame");
    if (error.os_errno == EMSGSIZE) error.code = ErrorCode::invalid_argument;
    return std::unexpected(std::move(error));
  }
}

std::expected<ReceivedFrame, Error> receive_frame(int fd, std::span<std::byte> buffer) {
  return receive(fd, buffer, nullptr);
}

std::expected<ReceivedFrame, Error> receive_frame(int fd, std::span<std::byte> buffer,
                                                  ReceivedDescriptors& received) {
  received = {};
  return receive(fd, buffer, &received);
}

bool has_frame(int fd) {
  pollfd entry{fd, POLLIN, 0};
  return ::poll(&entry, 1, 0) == 1;
}

std::expected<void, Error> wait_readable(int fd, Deadline deadline) {
  return wait_for(fd, POLLIN, deadline);
}

std::expected<void, Error> wait_writable(int fd, Deadline deadline) {
  return wait_for(fd, POLLOUT, deadline);
}

}  // namespace hotkv
