#include "daemon/platform/log.hpp"

#include <poll.h>
#include <signal.h>
#include <sys/eventfd.h>

#include <array>
#include <atomic>
#include <cerrno>
#include <climits>
#include <exception>
#include <utility>

#include <spdlog/async_logger.h>
#include <spdlog/details/null_mutex.h>
#include <spdlog/details/thread_pool.h>
#include <spdlog/sinks/base_sink.h>

#include "shared/unique_fd.hpp"

namespace hotkv::platform {
namespace {

// A slot is about 400 bytes, so under a MiB in all; at a few lines a second, minutes of a stall.
constexpr std::size_t kQueueLines = 2048;
constexpr const char* kPattern = "ts=%Y-%m-%dT%H:%M:%S.%e%z level=%l %v";

struct LevelName {
  std::string_view name;
  spdlog::level::level_enum level;
};
// spdlog writes "warning" in lines; the name for configuration is the short one.
constexpr std::array<LevelName, 5> kLevels{{{"trace", spdlog::level::trace},
                                            {"debug", spdlog::level::debug},
                                            {"info", spdlog::level::info},
                                            {"warn", spdlog::level::warn},
                                            {"error", spdlog::level::err}}};

std::expected<spdlog::level::level_enum, Error> level_of(std::string_view name) {
  for (const LevelName& known : kLevels) {
    if (known.name == name) return known.level;
  }
  return std::unexpected(
      Error{ErrorCode::configuration_error, "set", "log level",
            "\"" + std::string(name) + "\" is none of trace, debug, info, warn, error", 0});
}

// SIGPIPE in the writing thread would end the daemon when the reader of stderr goes away; all other
// signals are the main thread's.
void block_signals() {
  sigset_t all;
  ::sigfillset(&all);
  ::pthread_sigmask(SIG_BLOCK, &all, nullptr);
}

}  // namespace

// Runs on the log's thread, but for stop() and lost_lines().
class StderrSink final : public spdlog::sinks::base_sink<spdlog::details::null_mutex> {
 public:
  StderrSink(int fd, UniqueFd stop_event) : fd_(fd), stop_event_(std::move(stop_event)) {}

  // From now on a line that cannot be written at once is lost.
  void stop() { (void)::eventfd_write(stop_event_.get(), 1); }

  void count_lost_line() { lost_lines_.fetch_add(1, std::memory_order_relaxed); }
  // Relaxed: a counter that orders nothing.
  [[nodiscard]] std::uint64_t lost_lines() const {
    return lost_lines_.load(std::memory_order_relaxed);
  }

 protected:
  void sink_it_(const spdlog::details::log_msg& message) override {
    spdlog::memory_buf_t line;
    formatter_->format(message, line);
    if (line.size() > PIPE_BUF) {
      line.resize(PIPE_BUF);
      line[PIPE_BUF - 1] = '\n';
    }
    if (!wait_writable() || !write_whole({line.data(), line.size()})) count_lost_line();
  }

  void flush_() override {}

 private:
  // Also true when the reader is gone; the write then fails. False: not ready, and we are stopping.
  bool wait_writable() {
    std::array<pollfd, 2> entries{pollfd{.fd = fd_, .events = POLLOUT, .revents = 0},
                                  pollfd{.fd = stop_event_.get(), .events = POLLIN, .revents = 0}};
    while (::poll(entries.data(), entries.size(), -1) < 0) {
      if (errno != EINTR) return false;
    }
    return entries[0].revents != 0;
  }

  // A line no longer than PIPE_BUF is taken whole by a pipe; files and sockets may take a part.
  bool write_whole(std::string_view line) {
    while (!line.empty()) {
      const ssize_t written = ::write(fd_, line.data(), line.size());
      if (written < 0 && errno == EINTR) continue;
      if (written < 0 && errno == EAGAIN && wait_writable()) continue;
      if (written <= 0) return false;
      line.remove_prefix(static_cast<std::size_t>(written));
    }
    return true;
  }

  const int fd_;
  const UniqueFd stop_event_;
  std::atomic<std::uint64_t> lost_lines_{0};
};

std::expected<std::unique_ptr<Log>, Error> Log::start(const LogOptions& options) {
  const auto level = level_of(options.level);
  if (!level) return std::unexpected(level.error());
  UniqueFd stop_event(::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK));
  if (!stop_event) return std::unexpected(system_error("start", "log"));
  try {
    std::unique_ptr<Log> log(new Log());
    log->sink_ = std::make_shared<StderrSink>(options.fd, std::move(stop_event));
    log->sink_->set_pattern(kPattern);
    log->thread_ =
        std::make_shared<spdlog::details::thread_pool>(kQueueLines, 1, [] { block_signals(); });
    log->logger_ = std::make_shared<spdlog::async_logger>(
        "hotkvd", log->sink_, log->thread_, spdlog::async_overflow_policy::overrun_oldest);
    log->logger_->set_level(*level);
    // spdlog's own handler prints to stderr from the caller's thread, and may block there.
    log->logger_->set_error_handler(
        [sink = log->sink_.get()](const std::string&) { sink->count_lost_line(); });
    return log;
  } catch (const std::exception& failure) {
    return std::unexpected(Error{ErrorCode::system_error, "start", "log", failure.what(), 0});
  }
}

Log::~Log() {
  if (sink_ != nullptr) sink_->stop();
  // Ends the thread after the queued lines, none of which waits any more. Queued lines keep the
  // logger alive, so the pool goes first.
  thread_.reset();
}

std::expected<void, Error> Log::set_level(std::string_view name) {
  const auto level = level_of(name);
  if (!level) return std::unexpected(level.error());
  logger_->set_level(*level);
  return {};
}

std::string_view Log::level() const {
  for (const LevelName& known : kLevels) {
    if (known.level == logger_->level()) return known.name;
  }
  return "off";
}

std::uint64_t Log::lost_lines() const {
  return sink_->lost_lines() + thread_->overrun_counter();
}

RateLimit::Window& RateLimit::window_of(std::string_view key, std::chrono::milliseconds now) {
  if (auto found = windows_.find(key); found != windows_.end()) return found->second;
  const std::string_view stored = windows_.size() < kKeysMax ? key : std::string_view{};
  return windows_.try_emplace(std::string(stored), Window{.start = now}).first->second;
}

std::optional<std::uint64_t> RateLimit::admit(std::string_view key, std::chrono::milliseconds now) {
  Window& window = window_of(key, now);
  if (now - window.start >= std::chrono::seconds(1)) {
    window.start = now;
    window.line_count = 0;
  }
  if (window.line_count == lines_per_second_max_) {
    ++window.left_out;
    return std::nullopt;
  }
  ++window.line_count;
  return std::exchange(window.left_out, 0);
}

}  // namespace hotkv::platform
