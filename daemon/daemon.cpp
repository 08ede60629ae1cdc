#include "daemon/daemon.hpp"

#include <signal.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <unistd.h>

#include <utility>  // Boost 1.74's Asio uses std::exchange without it

#include <algorithm>
#include <boost/asio/io_context.hpp>
#include <boost/asio/post.hpp>
#include <boost/asio/signal_set.hpp>
#include <boost/asio/steady_timer.hpp>
#include <chrono>
#include <exception>
#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "daemon/adoption.hpp"
#include "daemon/core/core.hpp"
#include "daemon/effective_limits.hpp"
#include "daemon/linux_shard_files.hpp"
#include "daemon/platform/control_listener.hpp"
#include "daemon/platform/headroom.hpp"
#include "daemon/platform/log.hpp"
#include "daemon/platform/monotonic_clock.hpp"
#include "daemon/platform/peer.hpp"
#include "daemon/platform/provisioner.hpp"
#include "daemon/platform/service_manager.hpp"
#include "daemon/server/admin_pages.hpp"
#include "daemon/server/admin_server.hpp"
#include "daemon/server/attacher.hpp"
#include "daemon/server/control_server.hpp"
#include "daemon/server/dispatcher.hpp"
#include "daemon/server/event_log.hpp"

namespace hotkv {
namespace {

using std::chrono::milliseconds;

// Housekeeping: expiry is meant in seconds, and a client that hung up is asked after this often.
constexpr milliseconds kTickInterval{1000};
// Everything a stop does is a matter of milliseconds. Should a thread hang all the same (stderr is
// a stopped terminal, the kernel is slow to give memory), the process ends by SIGALRM instead.
constexpr unsigned kStopDeadlineSeconds = 10;

// The event loop, and how the provisioner's thread reaches it.
struct Loop {
  boost::asio::io_context io{1};
  std::function<void()> take_completions;  // set before the loop runs

  void wake() {
    boost::asio::post(io, [this] { take_completions(); });
  }
};

// What can fail to be made. Listeners come first: they narrow the umask for a moment, which is the
// whole process's, and threads start after them.
struct Parts {
  core::Limits limits;
  platform::ListeningSocket control;
  platform::ListeningSocket admin;
  std::unique_ptr<platform::Log> log;
  std::unique_ptr<Loop> loop;
  std::unique_ptr<platform::Provisioner>
      provisioner;  // its thread wakes the loop, so it ends first
};

std::string_view level_name(LogLevel level) {
  switch (level) {
    case LogLevel::trace: return "trace";
    case LogLevel::debug: return "debug";
    case LogLevel::info: return "info";
    case LogLevel::warn: return "warn";
    case LogLevel::error: return "error";
  }
  return "info";
}

// A value with a space or a quote in it would be read as several.
std::string log_value(const std::string& value) {
  if (value.find_first_of(" \"\\\n") == std::string::npos) return value;
  return '"' + escape_bytes(value) + '"';
}

std::string config_line(Config config, const core::Limits& limits) {
  config.max_bytes = limits.max_bytes;
  std::string line = "event=config";
  for (const auto& [key, value] : describe(config)) line += " " + key + "=" + log_value(value);
  return line + " hugepages_effective=" + (limits.huge_pages ? "on" : "off");
}

std::string restart_text(Adoption::Restart restart) {
  switch (restart) {
    case Adoption::Restart::unknown: return "unknown";
    case Adoption::Restart::keeps: return "keeps";
    case Adoption::Restart::cold: return "cold";
  }
  return "unknown";
}

// A dump would hold every tenant's bytes that a mapping's advice did not cover, and another process
// of our uid could read our memory and descriptors.
void settle_process() {
  ::prctl(PR_SET_DUMPABLE, 0);
  ::signal(SIGPIPE, SIG_IGN);
  ::signal(SIGXFSZ, SIG_IGN);
}

std::expected<server::Peer, Error> peer_of(int fd) {
  const auto credentials = platform::peer_credentials(fd);
  if (!credentials) return std::unexpected(credentials.error());
  return server::Peer{credentials->uid, static_cast<std::uint32_t>(credentials->pid)};
}

std::expected<Parts, Error> make_parts(const Config& config) {
  const auto limits = effective_limits(config, read_machine_facts());
  if (!limits) return std::unexpected(limits.error());
  auto control = platform::ListeningSocket::open(config.socket, {.type = SOCK_SEQPACKET});
  if (!control) return std::unexpected(std::move(control.error()));
  auto admin = platform::ListeningSocket::open(config.admin_socket, {.type = SOCK_STREAM});
  if (!admin) return std::unexpected(std::move(admin.error()));
  auto log = platform::Log::start({.level = std::string(level_name(config.log_level))});
  if (!log) return std::unexpected(std::move(log.error()));
  auto loop = std::make_unique<Loop>();
  // A job for every append that may wait, one for every shard that may be dropped meanwhile, and
  // the one for memory that is nobody's.
  const platform::ProvisionerOptions options{.jobs_max = std::size_t{limits->waiting_grants_max} +
                                                         limits->max_shards + 1};
  auto provisioner = platform::Provisioner::start(
      platform::Headroom({.machine_reserve_bytes = config.memory_reserve_bytes}), options,
      [loop = loop.get()] { loop->wake(); });
  if (!provisioner) return std::unexpected(std::move(provisioner.error()));
  return Parts{*limits,         *std::move(control), *std::move(admin),
               *std::move(log), std::move(loop),     *std::move(provisioner)};
}

}  // namespace

class Daemon::Impl {
 public:
  // Throws what Asio throws where the loop cannot watch a descriptor.
  Impl(const Config& config, ProcessIs process, Parts parts);

  void run();
  void stop() {
    boost::asio::post(io_, [this] { end("call"); });
  }

 private:
  [[nodiscard]] server::DaemonFacts facts() const;
  void take_completions();
  void tick_later();
  void go_on_later();
  void ping_later(std::chrono::microseconds interval);
  void watch_end_signals();
  void watch_hang_up_signal();
  void end(std::string_view cause);
  // Of what the daemon can do without.
  void warn_of(const std::expected<void, Error>& result);

  const std::string control_path_;
  const ProcessIs process_;
  const milliseconds started_ = platform::now();
  Parts parts_;
  boost::asio::io_context& io_{parts_.loop->io};
  spdlog::logger& log_{parts_.log->logger()};
  server::EventLog events_{log_, platform::now};
  platform::ServiceManager service_manager_;
  const std::vector<std::string> certified_architectures_;
  LinuxShardFiles files_;
  core::Core core_;
  Adoption adoption_;
  server::ServerCounters counters_;
  server::Attacher attacher_;
  bool goes_on_ = false;  // the dispatcher's next piece is posted; used until its end
  server::Dispatcher dispatcher_;
  server::ControlServer control_;
  server::AdminPages pages_;
  server::AdminServer admin_;
  boost::asio::steady_timer tick_timer_{io_};
  boost::asio::steady_timer ping_timer_{io_};
  boost::asio::signal_set end_signals_{io_};
  boost::asio::signal_set hang_up_signal_{io_};
  milliseconds longest_stall_{0};
};

Daemon::Impl::Impl(const Config& config, ProcessIs process, Parts parts)
    : control_path_(config.socket),
      process_(process),
      parts_(std::move(parts)),
      certified_architectures_(config.certified_architectures),
      files_(*parts_.provisioner, service_manager_, parts_.limits.huge_pages),
      core_(
          parts_.limits, [] { return static_cast<std::uint64_t>(platform::now().count()); },
          files_),
      adoption_(core_, files_, service_manager_, certified_architectures_, log_),
      attacher_(core_, files_, certified_architectures_),
      dispatcher_(core_, files_, attacher_, counters_, events_, [this] { go_on_later(); }),
      control_(io_, parts_.control.take_fd(), config.max_connections, peer_of, dispatcher_,
               counters_, events_),
      pages_(core_, counters_, [this] { return facts(); }),
      admin_(io_, parts_.admin.take_fd(), pages_, counters_, events_) {
  parts_.loop->take_completions = [this] { take_completions(); };
  log_.info("event=start version={} pid={} uid={}", HOTKV_VERSION, ::getpid(), ::geteuid());
  log_.info("{}", config_line(config, parts_.limits));
  // From here on a signal to end waits for the loop: an adoption that it cut short would count as
  // one that failed.
  if (process_ == ProcessIs::ours) {
    watch_end_signals();
    watch_hang_up_signal();
  }
  adoption_.run();
}

void Daemon::Impl::run() {
  control_.start();
  admin_.start();
  tick_later();
  // A third of the manager's limit: two pings may come late before it kills.
  const auto watchdog = service_manager_.watchdog_interval();
  if (!watchdog) warn_of(std::unexpected(watchdog.error()));
  if (watchdog && *watchdog) ping_later(**watchdog / 3);
  warn_of(service_manager_.ready("serving on " + control_path_));
  log_.info("event=ready socket={}", log_value(control_path_));
  io_.run();
}

server::DaemonFacts Daemon::Impl::facts() const {
  return {.version = HOTKV_VERSION,
          .pid = static_cast<std::uint32_t>(::getpid()),
          .uptime_ms = static_cast<std::uint64_t>((platform::now() - started_).count()),
          .longest_stall_ms = static_cast<std::uint64_t>(longest_stall_.count()),
          .log_lines_lost = parts_.log->lost_lines(),
          .restart = restart_text(adoption_.restart()),
          .adopted_shards = adoption_.adopted_shards(),
          .refused_shards = adoption_.refused_shards()};
}

void Daemon::Impl::take_completions() {
  for (platform::ProvisionCompletion& completion : files_.take_completions()) {
    dispatcher_.memory_order_done(completion.id, std::move(completion.result),
                                  completion.punches_done);
  }
}

void Daemon::Impl::tick_later() {
  tick_timer_.expires_after(kTickInterval);
  tick_timer_.async_wait(
      [this, due = platform::now() + kTickInterval](const boost::system::error_code& error) {
        if (error) return;
        dispatcher_.tick();  // which takes its time as well
        adoption_.tick();
        if (const auto surplus = files_.give_back_surplus(core_)) {
          events_.warn("surplus-memory", "shard=" + std::to_string(surplus->shard.value()) +
                                             " bytes=" + std::to_string(surplus->bytes));
        }
        longest_stall_ = std::max(longest_stall_, platform::now() - due);
        tick_later();
      });
}

// The loop looks at its sockets before it comes to what is posted.
void Daemon::Impl::go_on_later() {
  if (std::exchange(goes_on_, true)) return;
  boost::asio::post(io_, [this] {
    goes_on_ = false;
    dispatcher_.go_on();
  });
}

void Daemon::Impl::ping_later(std::chrono::microseconds interval) {
  ping_timer_.expires_after(interval);
  ping_timer_.async_wait([this, interval](const boost::system::error_code& error) {
    if (error) return;
    warn_of(service_manager_.ping());
    ping_later(interval);
  });
}

void Daemon::Impl::watch_end_signals() {
  end_signals_.add(SIGTERM);
  end_signals_.add(SIGINT);
  end_signals_.async_wait([this](const boost::system::error_code& error, int signal) {
    if (!error) end(signal == SIGTERM ? "SIGTERM" : "SIGINT");
  });
}

void Daemon::Impl::watch_hang_up_signal() {
  hang_up_signal_.add(SIGHUP);
  hang_up_signal_.async_wait([this](const boost::system::error_code& error, int) {
    if (error) return;
    events_.warn("sighup-ignored", "cause=\"the configuration is read at start only\"");
    watch_hang_up_signal();
  });
}

void Daemon::Impl::end(std::string_view cause) {
  if (process_ == ProcessIs::ours) ::alarm(kStopDeadlineSeconds);
  log_.info("event=stop cause={}", cause);
  warn_of(service_manager_.stopping());
  control_.stop();
  admin_.stop();
  io_.stop();
}

void Daemon::Impl::warn_of(const std::expected<void, Error>& result) {
  if (!result) events_.warn("service-manager", "cause=\"" + result.error().message() + "\"");
}

std::expected<std::unique_ptr<Daemon>, Error> Daemon::start(const Config& config,
                                                            ProcessIs process) {
  if (process == ProcessIs::ours) settle_process();
  auto parts = make_parts(config);
  if (!parts) return std::unexpected(std::move(parts.error()));
  try {
    return std::unique_ptr<Daemon>(
        new Daemon(std::make_unique<Impl>(config, process, *std::move(parts))));
  } catch (const boost::system::system_error& failure) {
    return std::unexpected(system_error("watch", "listening sockets", failure.code().value()));
  }
}

Daemon::Daemon(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
Daemon::~Daemon() = default;

void Daemon::run() {
  impl_->run();
}
void Daemon::stop() {
  impl_->stop();
}

}  // namespace hotkv
