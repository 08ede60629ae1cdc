#pragma once
// The daemon's log: lines to stderr that never make the daemon wait.

#include <unistd.h>

#include <chrono>
#include <cstdint>
#include <expected>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <string_view>

#include <spdlog/logger.h>

#include <hotkv/error.hpp>

namespace spdlog::details {
class thread_pool;
}

namespace hotkv::platform {

class StderrSink;

struct LogOptions {
  int fd = STDERR_FILENO;      // borrowed; must outlive the log
  std::string level = "info";  // trace, debug, info, warn, error
};

// An spdlog logger whose lines ("ts=… level=… " and the caller's key=value text) are written by a
// thread of its own. A reader of stderr that stalls, goes away and comes back costs lines, which
// are counted, and nothing else: the queue drops its oldest line when it is full, a line is written
// only once stderr is ready for it, and a failed write is not an error of the daemon. Lines are cut
// at 4096 bytes, the most that a pipe reported as ready is sure to take at once.
// Log from any thread.
class Log {
 public:
  // Errors: configuration_error (an unknown level), system_error.
  [[nodiscard]] static std::expected<std::unique_ptr<Log>, Error> start(const LogOptions& options);
  Log(const Log&) = delete;
  Log& operator=(const Log&) = delete;
  // Writes what is queued as far as stderr takes it without waiting. The logger must not be used
  // any more.
  ~Log();

  [[nodiscard]] spdlog::logger& logger() { return *logger_; }

  // Errors: configuration_error, with the names there are.
  [[nodiscard]] std::expected<void, Error> set_level(std::string_view name);
  [[nodiscard]] std::string_view level() const;

  // Lines that were logged and not written.
  [[nodiscard]] std::uint64_t lost_lines() const;

 private:
  Log() = default;

  std::shared_ptr<StderrSink> sink_;
  std::shared_ptr<spdlog::details::thread_pool> thread_;
  std::shared_ptr<spdlog::logger> logger_;
};

// Keeps what outsiders can provoke from filling the disk: of each kind of line at most so many in a
// second, and the next one written tells how many were left out. One thread's.
//
//   if (auto left_out = limit.admit("bad-frame", now)) log.warn("… left_out={}", *left_out);
class RateLimit {
 public:
  // Keys are kinds of lines, named in the source, not values a client chose. Should one slip in,
  // the surplus share one allowance, so that the table stays bounded.
  static constexpr std::size_t kKeysMax = 256;

  explicit RateLimit(std::uint32_t lines_per_second_max)
      : lines_per_second_max_(lines_per_second_max) {}

  // nullopt: leave the line out. Otherwise write it; the value is how many lines of this key were
  // left out since the last one written. `now` is monotonic.
  [[nodiscard]] std::optional<std::uint64_t> admit(std::string_view key,
                                                   std::chrono::milliseconds now);

 private:
  struct Window {
    std::chrono::milliseconds start{};
    std::uint32_t line_count = 0;
    std::uint64_t left_out = 0;
  };
  [[nodiscard]] Window& window_of(std::string_view key, std::chrono::milliseconds now);

  const std::uint32_t lines_per_second_max_;
  std::map<std::string, Window, std::less<>> windows_;
};

}  // namespace hotkv::platform
