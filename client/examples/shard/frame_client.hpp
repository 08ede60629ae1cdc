#pragma once
// The asking end of a conversation in frames.

#include <chrono>
#include <expected>
#include <filesystem>
#include <memory>
#include <string>

#include <hotkv/error.hpp>

namespace hotkv::shard {

// A frame there, a frame back. Connects when it has something to say; after a failure the next
// exchange connects anew, so an answer that comes too late answers nothing. One thread's.
//
// A connection that was open before may turn out to be dead: its server was killed meanwhile. Then
// the frame is sent once more, to whoever listens there now. So a frame can be answered twice, and
// is one for which that does no harm.
class FrameClient {
 public:
  explicit FrameClient(std::filesystem::path path);
  ~FrameClient();
  FrameClient(const FrameClient&) = delete;
  FrameClient& operator=(const FrameClient&) = delete;

  // Errors: system_error if nobody listens or the other side hangs up; deadline_exceeded;
  // invalid_argument for a path or a frame that is too long. The other side may have done what was
  // asked.
  [[nodiscard]] std::expected<std::string, Error> exchange(const std::string& frame,
                                                           std::chrono::milliseconds deadline);
  // Whether somebody is there to be asked: connected and not hung up, or connected now. Asks
  // nothing. Errors: system_error, invalid_argument.
  [[nodiscard]] std::expected<void, Error> reach();

 private:
  struct State;
  [[nodiscard]] std::expected<std::string, Error> try_exchange(
      const std::string& frame, std::chrono::steady_clock::time_point end);

  std::filesystem::path path_;
  std::unique_ptr<State> state_;
};

}  // namespace hotkv::shard
