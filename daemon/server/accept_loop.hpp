#pragma once
// Takes connections off a listening socket, without spinning when the process is out of
// descriptors.

#include <utility>  // Boost 1.74's Asio uses std::exchange without it

#include <boost/asio/io_context.hpp>
#include <boost/asio/posix/stream_descriptor.hpp>
#include <boost/asio/steady_timer.hpp>
#include <cstdint>
#include <functional>
#include <string>

#include "daemon/server/event_log.hpp"
#include "shared/unique_fd.hpp"

namespace hotkv::server {

// One thread's: the one that runs the io_context.
class AcceptLoop {
 public:
  using Accepted = std::function<void(UniqueFd)>;

  // `listener` listens and is nonblocking. `name` says in the log which socket it is. The last
  // `spare_descriptors` under the limit are for those who are there, and are not spent on
  // connections. `errors` counts failed accepts; it and the log outlive this. Throws
  // boost::system::system_error if the event loop cannot watch the socket.
  AcceptLoop(boost::asio::io_context& io, UniqueFd listener, std::string name,
             unsigned spare_descriptors, EventLog& log, std::uint64_t& errors, Accepted accepted);
  // The io_context must not run any more.
  ~AcceptLoop();
  AcceptLoop(const AcceptLoop&) = delete;
  AcceptLoop& operator=(const AcceptLoop&) = delete;

  void start();
  // Closes the listening socket; who still waits in its queue sees a hang-up.
  void stop();

 private:
  void wait();
  UniqueFd accept_one();
  void accept_some();
  void pause();

  boost::asio::posix::stream_descriptor listener_;
  boost::asio::steady_timer pause_timer_;
  const std::string name_;
  const unsigned spare_descriptors_;
  EventLog& log_;
  std::uint64_t& errors_;
  const Accepted accepted_;
};

}  // namespace hotkv::server
