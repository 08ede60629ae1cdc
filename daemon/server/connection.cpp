#include "daemon/server/connection.hpp"

#include <algorithm>
#include <array>
#include <boost/asio/post.hpp>
#include <string>

#include "daemon/core/pid_text.hpp"
#include "shared/seqpacket.hpp"

namespace hotkv::server {

using boost::asio::posix::stream_descriptor;

Connection::Connection(boost::asio::io_context& io, UniqueFd socket, Peer peer,
                       Dispatcher& dispatcher, ServerCounters& counters, EventLog& log,
                       std::span<std::byte> buffer, Closed closed)
    : io_(io),
      socket_(io),
      rest_timer_(io),
      dispatcher_(dispatcher),
      counters_(counters),
      log_(log),
      buffer_(buffer),
      closed_(std::move(closed)),
      conversation_{.peer = peer,
                    .send = [this](OutgoingFrame frame) { send(std::move(frame)); },
                    .hang_up = [this] { close_soon(DisconnectReason::client_gone); }} {
  socket_.assign(socket.get());  // throws where the loop cannot watch it; then it is closed
  (void)socket.release();
}

void Connection::close(DisconnectReason reason) {
  if (!std::exchange(is_open_, false)) return;
  counters_.count_disconnect(reason);
  boost::system::error_code ignored;
  socket_.close(ignored);
  rest_timer_.cancel();
  output_.clear();  // with the descriptors in it: a page that was not delivered is nobody's
  dispatcher_.disconnected(conversation_);
  closed_(*this);
}

void Connection::close_soon(DisconnectReason reason) {
  if (!is_open_ || ending_) return;
  ending_ = reason;
  boost::asio::post(io_, [self = shared_from_this()] { self->close(*self->ending_); });
}

// Also called when a waiting reply was sent, which may be what reading was paused for.
void Connection::read_next() {
  if (!is_open_ || ending_ || reading_) return;
  if (conversation_.waiting_frames >= kWaitingFramesMax) return;
  reading_ = true;
  if (std::exchange(rests_, false)) return rest();
  socket_.async_wait(stream_descriptor::wait_read,
                     [self = shared_from_this()](const boost::system::error_code& error) {
                       self->reading_ = false;
                       if (error == boost::asio::error::operation_aborted) return;
                       error ? self->close(DisconnectReason::system_error) : self->read_one();
                     });
}

void Connection::rest() {
  ++counters_.rests;
  if (!std::exchange(was_slowed_, true)) {
    log_.warn("client-slowed", "uid=" + std::to_string(conversation_.peer.uid) +
                                   " pid=" + core::pid_text(conversation_.peer.pid) +
                                   " cause=\"it sends ahead without an end\"");
  }
  rest_timer_.expires_after(Pace::kRest);
  rest_timer_.async_wait([self = shared_from_this()](const boost::system::error_code& error) {
    self->reading_ = false;
    if (!error) self->read_next();
  });
}

void Connection::read_one() {
  if (!is_open_ || ending_) return;
  const auto begin = Pace::Clock::now();
  receive_untrusted();
  pace_.charge(begin, Pace::Clock::now());
  read_next();
}

void Connection::receive_untrusted() {
  const auto received = receive_frame(socket_.native_handle(), buffer_);
  rests_ = is_due_to_rest();
  if (!received) {
    if (received.error().code == ErrorCode::protocol_error) {
      return dispatcher_.refuse(conversation_, FrameRefusal{0, 0, received.error()});
    }
    log_.warn("receive-failed", "cause=\"" + received.error().message() + "\"");
    return close(DisconnectReason::system_error);
  }
  switch (received->outcome) {
    case FrameOutcome::would_block: return;
    case FrameOutcome::closed: return close(DisconnectReason::hung_up);
    case FrameOutcome::ok:
      return dispatcher_.handle(conversation_, buffer_.first(received->size_bytes));
  }
}

// Asked before the frame is answered: who waits for answers cannot have sent another one yet.
bool Connection::is_due_to_rest() {
  return pace_.is_used_up(Pace::Clock::now()) && counters_.connections > 1 &&
         has_frame(socket_.native_handle());
}

void Connection::send(OutgoingFrame frame) {
  if (!is_open_ || ending_) return;
  if (output_.size() >= kOutputFramesMax || output_bytes_ + frame.bytes.size() > kOutputBytesMax) {
    log_.warn("client-not-reading", "uid=" + std::to_string(conversation_.peer.uid) +
                                        " pid=" + core::pid_text(conversation_.peer.pid));
    return close_soon(DisconnectReason::not_reading);
  }
  output_bytes_ += frame.bytes.size();
  output_.push_back(std::move(frame));
  if (!writing_) write_some();
}

void Connection::write_some() {
  while (is_open_ && !ending_ && !output_.empty()) {
    const OutgoingFrame& frame = output_.front();
    std::array<int, protocol::kAttachDescriptors> descriptors{};
    std::ranges::transform(frame.descriptors, descriptors.begin(), &UniqueFd::get);
    const auto sent = send_frame(
        socket_.native_handle(), frame.bytes,
        frame.descriptors[0] ? std::span<const int>(descriptors) : std::span<const int>());
    if (!sent) {
      log_.warn("send-failed", "cause=\"" + sent.error().message() + "\"");
      return close_soon(DisconnectReason::system_error);
    }
    if (*sent == FrameOutcome::closed) return close_soon(DisconnectReason::hung_up);
    if (*sent == FrameOutcome::would_block) {
      writing_ = true;
      socket_.async_wait(stream_descriptor::wait_write,
                         [self = shared_from_this()](const boost::system::error_code& error) {
                           self->writing_ = false;
                           if (error == boost::asio::error::operation_aborted) return;
                           error ? self->close(DisconnectReason::system_error) : self->write_some();
                         });
      return;
    }
    output_bytes_ -= frame.bytes.size();
    output_.pop_front();
  }
  read_next();
}

}  // namespace hotkv::server
