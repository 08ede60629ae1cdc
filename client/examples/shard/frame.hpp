#pragma once
// Frames between routers and shards: four bytes of length, little-endian, and that many bytes, over
// a Unix stream socket. What both ends share.

#include <array>
#include <cstddef>
#include <cstdint>
#include <expected>
#include <filesystem>
#include <string>
#include <utility>  // before Asio: Boost 1.74's headers miss it

#include <boost/asio/local/stream_protocol.hpp>

#include <hotkv/error.hpp>

namespace hotkv::shard {

// A step of 128 tokens of a model of dimension 65536 is 32 MiB.
inline constexpr std::size_t kFrameBytesMax = 64u << 20;

using FrameSocket = boost::asio::local::stream_protocol::socket;
using FrameLength = std::array<unsigned char, 4>;

[[nodiscard]] FrameLength length_of(const std::string& frame);
[[nodiscard]] std::uint32_t size_of(const FrameLength& length);

// Errors: invalid_argument for an empty path, or one that sockaddr_un has no room for.
[[nodiscard]] std::expected<void, Error> check_socket_path(const std::filesystem::path& path);

// Connects at once or not at all: with a full backlog it says EAGAIN and does not wait. The socket
// is open only if there is no error.
[[nodiscard]] boost::system::error_code connect_at_once(FrameSocket& socket,
                                                        const std::filesystem::path& path);

// Whether the other side hung up. Only where it has nothing to say: between two frames.
[[nodiscard]] bool has_hung_up(FrameSocket& socket);

// The Error of a failed operation; the errno is set where it is the system's.
[[nodiscard]] Error frame_error(std::string operation, const std::filesystem::path& path,
                                const boost::system::error_code& code);

}  // namespace hotkv::shard
