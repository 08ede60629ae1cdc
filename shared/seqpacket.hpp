#pragma once
// The control socket as both sides use it: AF_UNIX, SOCK_SEQPACKET, one frame a message.
//
// No call here blocks unless it takes a deadline, whatever the descriptor's flags; none raises
// SIGPIPE; a signal only makes it go on. Every received descriptor is close-on-exec.

#include <sys/un.h>

#include <array>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <expected>
#include <span>
#include <string_view>

#include <hotkv/error.hpp>

#include "shared/unique_fd.hpp"

namespace hotkv {

// sun_path has 108 bytes and ends with a zero.
inline constexpr std::size_t kSocketPathBytesMax = sizeof(sockaddr_un::sun_path) - 1;
// The fullest frame carries a shard's three files and one page; the rest is room for later frames.
inline constexpr std::size_t kFrameDescriptorsMax = 8;

using Deadline = std::chrono::steady_clock::time_point;

enum class FrameOutcome : std::uint8_t {
  ok,           // the whole frame was sent or received
  would_block,  // nothing was done; wait and call again
  closed,       // the other side is gone
};

struct [[nodiscard]] ReceivedFrame {
  FrameOutcome outcome = FrameOutcome::closed;
  std::size_t size_bytes = 0;  // of the frame, if outcome is ok; 0 is an empty frame
};

// The descriptors that came with a frame, in the sender's order.
struct ReceivedDescriptors {
  std::array<UniqueFd, kFrameDescriptorsMax> fds;
  std::size_t count = 0;
};

// Errors: invalid_argument if the path is empty, holds a zero byte (so abstract names are refused),
// or is longer than kSocketPathBytesMax. It is never cut: two long paths would become one.
[[nodiscard]] std::expected<sockaddr_un, Error> socket_address(std::string_view path);

// Connects, waiting until `deadline` while the daemon's queue of connections is full; the kernel
// wakes those that wait one by one as the daemon accepts. One attempt is made even if the deadline
// has passed. Errors: daemon_unavailable (nothing there, or nobody listens), deadline_exceeded,
// access_denied, invalid_argument (the path), system_error; each names the path.
[[nodiscard]] std::expected<UniqueFd, Error> connect_seqpacket(std::string_view path,
                                                               Deadline deadline);

// Sends one frame, and duplicates of up to kFrameDescriptorsMax descriptors with it. An empty frame
// is sent too, with its descriptors.
// Errors: invalid_argument (too many descriptors, or a frame larger than the socket takes).
[[nodiscard]] std::expected<FrameOutcome, Error> send_frame(int fd,
                                                            std::span<const std::byte> frame,
                                                            std::span<const int> fds = {});

// Receives one frame and refuses descriptors: without a control buffer the kernel drops whatever is
// passed before it takes a number in this process. The daemon's form.
// Errors: protocol_error if the frame is larger than `buffer`; it is consumed, and the next one can
// be received. After the other side has hung up, or shut its sending half, an empty frame counts
// as closed.
[[nodiscard]] std::expected<ReceivedFrame, Error> receive_frame(int fd,
                                                                std::span<std::byte> buffer);

// The same with descriptors, which replace those in `received`. The client's form. If the kernel
// could not deliver one, the error is system_error, all that came are closed, the frame is consumed
// and the connection stays usable.
[[nodiscard]] std::expected<ReceivedFrame, Error> receive_frame(int fd, std::span<std::byte> buffer,
                                                                ReceivedDescriptors& received);

// Whether receive_frame has something to tell: a frame, if only an empty one, or a hang-up.
[[nodiscard]] bool has_frame(int fd);

// Wait until the descriptor is readable (writable) or the other side is gone, which the next call
// on it will tell. Errors: deadline_exceeded, system_error.
[[nodiscard]] std::expected<void, Error> wait_readable(int fd, Deadline deadline);
[[nodiscard]] std::expected<void, Error> wait_writable(int fd, Deadline deadline);

}  // namespace hotkv
