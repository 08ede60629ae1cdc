#pragma once
// The admin socket: HTTP/1.1 over a stream Unix socket. One request a connection.

#include <boost/asio/io_context.hpp>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string_view>

#include "daemon/server/admin_pages.hpp"
#include "daemon/server/counters.hpp"
#include "daemon/server/event_log.hpp"
#include "shared/unique_fd.hpp"

namespace hotkv::server {

// Connections at a time; one more is closed at once. Operators and scrapers, not workers.
inline constexpr std::size_t kAdminConnectionsMax = 32;

// One thread's. A client that is slow, silent or sends rubbish holds a connection for some seconds
// and nothing else.
class AdminServer {
 public:
  // `listener` is a nonblocking listening SOCK_STREAM socket. The references outlive this. Throws
  // boost::system::system_error if the event loop cannot watch it.
  AdminServer(boost::asio::io_context& io, UniqueFd listener, AdminPages& pages,
              ServerCounters& counters, EventLog& log);
  ~AdminServer();

  void start();
  // Accepts nothing more and drops what is under way. Idempotent.
  void stop();

 private:
  class Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace hotkv::server
