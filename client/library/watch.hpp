#pragma once
// The library's one thread for a client: it receives replies, sees hang-ups, and comes back.

#include <chrono>
#include <expected>
#include <functional>
#include <memory>
#include <thread>
#include <vector>

#include <hotkv/error.hpp>

#include "client/library/connection.hpp"
#include "client/library/wakeup.hpp"

namespace hotkv::client {

// How to come back after a hang-up. All of it runs on the watching thread.
struct ComeBack {
  // Counted from the hang-up; 0: never. After a last try then the client stays disconnected.
  std::chrono::milliseconds within{0};
  // One try, bounded by a deadline of its own and by Wakeup::is_stopping(). What to serve from then
  // on, connected; null: never any more.
  std::function<std::expected<Connection*, Error>()> try_once;
  // There is a connection again, or (`gave_up`) none is tried for any more.
  std::function<void(bool gave_up)> changed;
};

// Runs from start() to its destructor, all signals blocked. What it serves is not its own: a
// connection outlives this object, or it is not served any more (try_once said what to serve
// instead). Not usable in a forked child, not even its destructor.
class Watch {
 public:
  // Errors: system_error (thread).
  [[nodiscard]] static std::expected<std::unique_ptr<Watch>, Error> start(
      Connection& connection, std::shared_ptr<Wakeup> wakeup, ComeBack come_back);
  ~Watch();
  Watch(const Watch&) = delete;
  Watch& operator=(const Watch&) = delete;

 private:
  Watch(Connection& connection, std::shared_ptr<Wakeup> wakeup, ComeBack come_back);
  // All below on the watching thread.
  void run();
  // Nothing escapes it.
  [[nodiscard]] std::expected<Connection*, Error> try_once() const;
  void sleep_until(std::chrono::steady_clock::time_point end) const;
  void serve();  // until the connection is at its end
  // Whether there is a connection to serve again.
  bool come_back(std::chrono::steady_clock::time_point served_since);

  const std::shared_ptr<Wakeup> wakeup_;
  const ComeBack come_back_;
  Connection* connection_;
  std::vector<std::byte> buffer_;  // of one frame
  std::uint32_t tries_ = 0;        // since a connection last stood for a while
  std::uint64_t random_state_;

  std::thread thread_;
};

}  // namespace hotkv::client
