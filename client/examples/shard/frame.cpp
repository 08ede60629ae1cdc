#include "client/examples/shard/frame.hpp"

#include <sys/socket.h>

#include <boost/asio/error.hpp>
#include <cerrno>

namespace hotkv::shard {

using boost::system::error_code;
using Protocol = boost::asio::local::stream_protocol;

FrameLength length_of(const std::string& frame) {
  const auto size = static_cast<std::uint32_t>(frame.size());
  return {static_cast<unsigned char>(size), static_cast<unsigned char>(size >> 8),
          static_cast<unsigned char>(size >> 16), static_cast<unsigned char>(size >> 24)};
}

std::uint32_t size_of(const FrameLength& length) {
  return length[0] | std::uint32_t{length[1]} << 8 | std::uint32_t{length[2]} << 16 |
         std::uint32_t{length[3]} << 24;
}

std::expected<void, Error> check_socket_path(const std::filesystem::path& path) {
  // sockaddr_un holds 107 bytes and their end.
  if (!path.empty() && path.native().size() <= 107) return {};
  return std::unexpected(
      Error{ErrorCode::invalid_argument, "use socket", path.string(),
            "a path of " + std::to_string(path.native().size()) + " bytes, not 1 to 107"});
}

error_code connect_at_once(FrameSocket& socket, const std::filesystem::path& path) {
  error_code code;
  socket.open(Protocol(), code);
  if (!code) socket.non_blocking(true, code);
  if (code) return code;
  const Protocol::endpoint address(path.string());
  if (::connect(socket.native_handle(), address.data(), static_cast<socklen_t>(address.size())) ==
      0) {
    return {};
  }
  code = error_code(errno, boost::system::system_category());
  error_code ignored;
  socket.close(ignored);
  return code;
}

bool has_hung_up(FrameSocket& socket) {
  char byte;
  const ssize_t size = ::recv(socket.native_handle(), &byte, 1, MSG_PEEK | MSG_DONTWAIT);
  return size == 0 || (size < 0 && errno != EAGAIN && errno != EWOULDBLOCK);
}

Error frame_error(std::string operation, const std::filesystem::path& path,
                  const error_code& code) {
  Error error{ErrorCode::system_error, std::move(operation), path.string(), "", 0};
  if (code == boost::asio::error::eof) {
    error.cause = "the other side hung up";
  } else if (code == boost::asio::error::timed_out) {
    error.code = ErrorCode::deadline_exceeded;
    error.cause = "no answer";
  } else if (code.category() == boost::system::system_category()) {
    error.os_errno = code.value();
  } else {
    error.cause = code.message();
  }
  return error;
}

}  // namespace hotkv::shard
