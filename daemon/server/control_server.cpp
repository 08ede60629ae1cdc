#include "daemon/server/control_server.hpp"

#include <exception>
#include <string>

#include "shared/seqpacket.hpp"

namespace hotkv::server {
namespace {

// For an attach (three to pass, three of a new shard), for the figures that an append reads before
// it takes memory, and for the operator's questions.
constexpr unsigned kSpareDescriptors = 12;

}  // namespace

ControlServer::ControlServer(boost::asio::io_context& io, UniqueFd listener,
                             std::uint32_t max_connections, PeerOf peer_of, Dispatcher& dispatcher,
                             ServerCounters& counters, EventLog& log)
    : io_(io),
      max_connections_(max_connections),
      peer_of_(std::move(peer_of)),
      dispatcher_(dispatcher),
      counters_(counters),
      log_(log),
      buffer_(protocol::kFrameBytesMax),
      accept_loop_(io, std::move(listener), "control", kSpareDescriptors, log,
                   counters.accept_errors, [this](UniqueFd socket) { accept(std::move(socket)); }) {
}

ControlServer::~ControlServer() {
  stop();
}

void ControlServer::stop() {
  accept_loop_.stop();
  while (!connections_.empty()) {
    const auto connection = connections_.begin()->second;  // alive until its close is over
    connection->close(DisconnectReason::shutting_down);
  }
}

std::expected<void, Error> ControlServer::check_room(std::uint32_t uid) const {
  const auto full = [](std::string cause) {
    return std::unexpected(
        Error{ErrorCode::too_many_connections, "accept", "control", std::move(cause), 0});
  };
  if (connections_.size() >= max_connections_) {
    return full("all " + std::to_string(max_connections_) + " connections are in use");
  }
  const auto held = connections_of_.find(uid);
  if (held == connections_of_.end()) return {};
  if (held->second < max_connections_ - max_connections_ / kConnectionsForOthers) return {};
  return full("uid " + std::to_string(uid) + " has " + std::to_string(held->second) + " of " +
              std::to_string(max_connections_) + " connections, the rest is for other users");
}

void ControlServer::accept(UniqueFd socket) {
  const auto peer = peer_of_(socket.get());
  if (!peer) return turn_away(std::move(socket), peer.error());
  if (auto room = check_room(peer->uid); !room) {
    return turn_away(std::move(socket), std::move(room.error()));
  }
  std::shared_ptr<Connection> connection;
  try {
    connection =
        std::make_shared<Connection>(io_, std::move(socket), *peer, dispatcher_, counters_, log_,
                                     buffer_, [this](Connection& closed) { forget(closed); });
  } catch (const std::exception& failure) {  // the event loop cannot watch one more descriptor
    ++counters_.connections_refused;
    log_.warn("connection-refused", "cause=\"" + std::string(failure.what()) + "\"");
    return;
  }
  ++counters_.connections_accepted;
  ++counters_.connections;
  ++connections_of_[peer->uid];
  connections_.emplace(connection.get(), connection);
  connection->start();
}

void ControlServer::forget(const Connection& closed) {
  --counters_.connections;
  const auto held = connections_of_.find(closed.peer().uid);
  if (--held->second == 0) connections_of_.erase(held);
  connections_.erase(&closed);
}

void ControlServer::turn_away(UniqueFd socket, Error error) {
  ++counters_.connections_refused;
  log_.warn("connection-refused", "cause=\"" + error.message() + "\"");
  // As an answer to HELLO, which the client sends first.
  const FrameRefusal refusal{static_cast<std::uint16_t>(protocol::Type::hello), 0,
                             std::move(error)};
  (void)send_frame(socket.get(), encode_refusal(refusal, 0));
}

}  // namespace hotkv::server
