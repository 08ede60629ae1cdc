#pragma once
// The daemon put together: the one file that knows core, server and platform.

#include <expected>
#include <memory>

#include <hotkv/error.hpp>

#include "daemon/config.hpp"

namespace hotkv {

// Whether the process is the daemon's, so that it takes over signals and the process's own settings
// (SIGTERM and SIGINT end it, SIGHUP is logged, SIGPIPE and SIGXFSZ are ignored, no core dumps); or
// somebody else's, such as a test's.
enum class ProcessIs { ours, a_guest };

class Daemon {
 public:
  // Listens, but serves nobody yet. Errors: address_in_use, access_denied (EACCES, EPERM),
  // configuration_error, system_error.
  [[nodiscard]] static std::expected<std::unique_ptr<Daemon>, Error> start(const Config& config,
                                                                           ProcessIs process);
  Daemon(const Daemon&) = delete;
  Daemon& operator=(const Daemon&) = delete;
  // Sockets are removed. Clients keep what they have mapped.
  ~Daemon();

  // Serves until a signal or stop(). The thread that calls it is the one that owns everything.
  void run();
  // From any thread.
  void stop();

 private:
  class Impl;
  explicit Daemon(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

}  // namespace hotkv
