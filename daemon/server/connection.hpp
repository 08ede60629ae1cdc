#pragma once
// One control connection: frames in, frames out, and bounds on both.

#include <utility>  // Boost 1.74's Asio uses std::exchange without it

#include <boost/asio/io_context.hpp>
#include <boost/asio/posix/stream_descriptor.hpp>
#include <boost/asio/steady_timer.hpp>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <optional>
#include <span>

#include "daemon/server/counters.hpp"
#include "daemon/server/dispatcher.hpp"
#include "daemon/server/pace.hpp"
#include "shared/unique_fd.hpp"

namespace hotkv::server {

// Replies queued behind what the kernel holds (about 200 KiB): several full frames, or a moment's
// worth of small ones. Over it the client is not reading, and is disconnected.
inline constexpr std::size_t kOutputBytesMax = 4 * protocol::kFrameBytesMax;
inline constexpr std::size_t kOutputFramesMax = 64;
// Replies that wait for memory. At the bound the connection is not read until one is answered; a
// worker that batches its decode steps has one or two.
inline constexpr std::uint32_t kWaitingFramesMax = 16;

// One thread's. Reads one frame a turn of the loop, so that no client can keep the others waiting.
class Connection : public std::enable_shared_from_this<Connection> {
 public:
  // Told once, when the connection is over and closed.
  using Closed = std::function<void(Connection&)>;

  // `buffer` is where frames are received, shared by all connections: at least kFrameBytesMax. It
  // and the other references outlive this. Throws boost::system::system_error if the event loop
  // cannot watch the socket.
  Connection(boost::asio::io_context& io, UniqueFd socket, Peer peer, Dispatcher& dispatcher,
             ServerCounters& counters, EventLog& log, std::span<std::byte> buffer, Closed closed);

  void start() { read_next(); }
  [[nodiscard]] Peer peer() const { return conversation_.peer; }
  // Ends the connection now, whatever is queued. Idempotent.
  void close(DisconnectReason reason);

 private:
  void read_next();
  void read_one();
  void receive_untrusted();
  void rest();
  // Whether others should have the loop for a while: this client is over its pace, and has not
  // waited for the answer to the frame that was just received.
  [[nodiscard]] bool is_due_to_rest();

  void send(OutgoingFrame frame);
  // Sends what is queued as far as the socket takes it.
  void write_some();
  // Ends the connection once the present call is over: the dispatcher may be in the middle of it.
  void close_soon(DisconnectReason reason);

  boost::asio::io_context& io_;
  boost::asio::posix::stream_descriptor socket_;
  boost::asio::steady_timer rest_timer_;
  Dispatcher& dispatcher_;
  ServerCounters& counters_;
  EventLog& log_;
  const std::span<std::byte> buffer_;
  const Closed closed_;
  Conversation conversation_;

  bool is_open_ = true;
  Pace pace_;
  bool rests_ = false;                      // the next frame is not to be read at once
  bool was_slowed_ = false;                 // and the log has said so
  bool reading_ = false;                    // a wait for the next frame is under way
  bool writing_ = false;                    // a wait for room is under way
  std::optional<DisconnectReason> ending_;  // close_soon was called
  std::deque<OutgoingFrame> output_;
  std::size_t output_bytes_ = 0;
};

}  // namespace hotkv::server
