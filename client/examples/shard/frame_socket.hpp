#pragma once
// Frames between routers and shards: four bytes of length, little-endian, and that many bytes, over
// a Unix stream socket.

#include <chrono>
#include <cstddef>
#include <expected>
#include <filesystem>
#include <functional>
#include <memory>
#include <string>

#include <hotkv/error.hpp>

namespace hotkv::shard {

// A step of 256 tokens of a model of dimension 32768 is 32 MiB.
inline constexpr std::size_t kFrameBytesMax = 64u << 20;

// One conversation with a server: a frame there, a frame back. Connects when it has something to
// say; after a failure the next exchange connects anew. One thread's.
//
// A connection of an earlier exchange may turn out to be dead: its server was killed meanwhile.
// Then the frame is sent once more, to whoever listens there now. So a frame can be answered twice,
// and is one for which that does no harm.
class FrameClient {
 public:
  explicit FrameClient(std::filesystem::path path);
  ~FrameClient();
  FrameClient(const FrameClient&) = delete;
  FrameClient& operator=(const FrameClient&) = delete;

  // Errors: system_error if nobody listens or the other side hangs up; deadline_exceeded;
  // invalid_argument for a frame beyond kFrameBytesMax. The other side may have done what was
  // asked.
  [[nodiscard]] std::expected<std::string, Error> exchange(const std::string& frame,
                                                           std::chrono::milliseconds deadline);
  // Whether somebody is there to be asked: connected and not hung up, or connected now. Asks
  // nothing. Errors: system_error.
  [[nodiscard]] std::expected<void, Error> reach();

 private:
  struct State;
  [[nodiscard]] std::expected<void, Error> connect();
  [[nodiscard]] std::expected<std::string, Error> try_exchange(
      const std::string& frame, std::chrono::steady_clock::time_point end);
  std::filesystem::path path_;
  std::unique_ptr<State> state_;
};

// Answers frames of up to 64 clients, one after the other, until SIGTERM or SIGINT. A frame whose
// client has hung up is not answered: it may be older than one that was answered meanwhile. The
// socket file is its user's alone. One that a dead server left behind is replaced; two servers that
// are started at one path at the same moment are not kept apart.
// Errors: address_in_use if a live server is there, system_error.
[[nodiscard]] std::expected<void, Error> serve_frames(
    const std::filesystem::path& path, const std::function<void()>& on_listening,
    const std::function<std::string(const std::string&)>& answer);

}  // namespace hotkv::shard
