#pragma once
// The control socket: accepts workers and readers, and holds their connections.

#include <utility>  // Boost 1.74's Asio uses std::exchange without it

#include <boost/asio/io_context.hpp>
#include <cstddef>
#include <cstdint>
#include <expected>
#include <functional>
#include <map>
#include <memory>
#include <vector>

#include "daemon/server/accept_loop.hpp"
#include "daemon/server/connection.hpp"
#include "daemon/server/counters.hpp"
#include "daemon/server/dispatcher.hpp"
#include "daemon/server/event_log.hpp"
#include "shared/unique_fd.hpp"

namespace hotkv::server {

// Of max_connections, the part (one in so many) that one uid alone cannot use: a worker that leaks
// connections must not lock the other users out.
inline constexpr std::uint32_t kConnectionsForOthers = 8;

// One thread's.
class ControlServer {
 public:
  // Who is at the other end of a connected socket.
  using PeerOf = std::function<std::expected<Peer, Error>(int fd)>;

  // `listener` is a nonblocking listening SOCK_SEQPACKET socket. The references outlive this.
  ControlServer(boost::asio::io_context& io, UniqueFd listener, std::uint32_t max_connections,
                PeerOf peer_of, Dispatcher& dispatcher, ServerCounters& counters, EventLog& log);
  ~ControlServer();

  void start() { accept_loop_.start(); }
  // Accepts nothing more and ends every connection; clients see a hang-up. Idempotent.
  void stop();

 private:
  void accept(UniqueFd socket);
  [[nodiscard]] std::expected<void, Error> check_room(std::uint32_t uid) const;
  void forget(const Connection& closed);
  // Tells a client that it cannot be served, as far as the socket takes it at once.
  void turn_away(UniqueFd socket, Error error);

  boost::asio::io_context& io_;
  const std::uint32_t max_connections_;
  const PeerOf peer_of_;
  Dispatcher& dispatcher_;
  ServerCounters& counters_;
  EventLog& log_;
  std::vector<std::byte> buffer_;
  std::map<const Connection*, std::shared_ptr<Connection>> connections_;
  std::map<std::uint32_t, std::uint32_t> connections_of_;  // by uid; none is 0
  AcceptLoop accept_loop_;                                 // last: it ends before what it uses
};

}  // namespace hotkv::server
