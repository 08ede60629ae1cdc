#include "client/examples/shard/frame_client.hpp"

#include "client/examples/shard/frame.hpp"

#include <boost/asio/io_context.hpp>
#include <boost/asio/read.hpp>
#include <boost/asio/write.hpp>

namespace hotkv::shard {

namespace asio = boost::asio;
using boost::system::error_code;

struct FrameClient::State {
  asio::io_context context;
  FrameSocket socket{context};

  // Runs one asynchronous operation to its end, or cuts it off. True if it completed.
  template <class Start>
  error_code await(std::chrono::steady_clock::time_point end, Start start) {
    error_code outcome = asio::error::timed_out;
    start([&outcome](error_code code, std::size_t) { outcome = code; });
    context.restart();
    context.run_until(end);
    if (!context.stopped()) {
      error_code ignored;
      socket.close(ignored);
      context.run();  // the cut-off operation's handler, which writes to `outcome`
      outcome = asio::error::timed_out;
    }
    return outcome;
  }
};

FrameClient::FrameClient(std::filesystem::path path)
    : path_(std::move(path)), state_(std::make_unique<State>()) {}
FrameClient::~FrameClient() = default;

std::expected<std::string, Error> FrameClient::exchange(const std::string& frame,
                                                        std::chrono::milliseconds deadline) {
  if (auto usable = check_socket_path(path_); !usable) return std::unexpected(usable.error());
  if (frame.size() > kFrameBytesMax) {
    return std::unexpected(
        Error{ErrorCode::invalid_argument, "send frame", path_.string(),
              std::to_string(frame.size()) + " bytes, at most " + std::to_string(kFrameBytesMax)});
  }
  const auto end = std::chrono::steady_clock::now() + deadline;
  const bool was_open_before = state_->socket.is_open();
  auto reply = try_exchange(frame, end);
  const bool is_dead = !reply && reply.error().code == ErrorCode::system_error;
  return is_dead && was_open_before ? try_exchange(frame, end) : std::move(reply);
}

std::expected<void, Error> FrameClient::reach() {
  if (auto usable = check_socket_path(path_); !usable) return usable;
  if (state_->socket.is_open() && has_hung_up(state_->socket)) {
    error_code ignored;
    state_->socket.close(ignored);
  }
  if (state_->socket.is_open()) return {};
  if (const error_code code = connect_at_once(state_->socket, path_)) {
    return std::unexpected(frame_error("connect", path_, code));
  }
  return {};
}

std::expected<std::string, Error> FrameClient::try_exchange(
    const std::string& frame, std::chrono::steady_clock::time_point end) {
  error_code code;
  const auto failed = [&](std::string operation) {
    error_code ignored;
    state_->socket.close(ignored);
    return std::unexpected(frame_error(std::move(operation), path_, code));
  };
  if (!state_->socket.is_open()) code = connect_at_once(state_->socket, path_);
  if (code) return failed("connect");
  const FrameLength length = length_of(frame);
  const std::array<asio::const_buffer, 2> buffers{asio::buffer(length), asio::buffer(frame)};
  code = state_->await(
      end, [&](auto done) { asio::async_write(state_->socket, buffers, std::move(done)); });
  if (code) return failed("send frame");
  const auto receive = [&](asio::mutable_buffer into) {
    return state_->await(
        end, [&](auto done) { asio::async_read(state_->socket, into, std::move(done)); });
  };
  FrameLength reply_length{};
  code = receive(asio::buffer(reply_length));
  if (code) return failed("receive frame");
  std::string reply;
  if (size_of(reply_length) > kFrameBytesMax) {
    code = error_code(EMSGSIZE, boost::system::system_category());
    return failed("receive frame");
  }
  reply.resize(size_of(reply_length));
  code = receive(asio::buffer(reply));
  if (code) return failed("receive frame");
  return reply;
}

}  // namespace hotkv::shard
