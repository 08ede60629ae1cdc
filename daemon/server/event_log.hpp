#pragma once
// Log lines that somebody outside can cause, of each kind a few in a second.

#include <chrono>
#include <functional>
#include <string_view>
#include <utility>

#include "daemon/platform/log.hpp"

namespace hotkv::server {

class EventLog {
 public:
  // Enough to see what happens, far from enough to fill a disk.
  static constexpr std::uint32_t kLinesPerSecondMax = 5;

  // `now` is monotonic. The logger outlives this.
  EventLog(spdlog::logger& logger, std::function<std::chrono::milliseconds()> now)
      : logger_(logger), now_(std::move(now)) {}

  // "event=KIND TEXT", with left_out=N where lines of this kind were left out since the last one.
  // The kind is a literal; the text is key=value with whatever a client chose escaped.
  void warn(std::string_view kind, std::string_view text) {
    const auto left_out = limit_.admit(kind, now_());
    if (!left_out) return;
    if (*left_out == 0) {
      logger_.warn("event={} {}", kind, text);
    } else {
      logger_.warn("event={} {} left_out={}", kind, text, *left_out);
    }
  }

 private:
  spdlog::logger& logger_;
  std::function<std::chrono::milliseconds()> now_;
  platform::RateLimit limit_{kLinesPerSecondMax};
};

}  // namespace hotkv::server
