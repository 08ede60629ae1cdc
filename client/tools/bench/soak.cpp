#include "client/tools/bench/soak.hpp"

#include <poll.h>
#include <sys/socket.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <deque>
#include <nlohmann/json.hpp>
#include <thread>
#include <utility>

#include "client/tools/bench/daemon_status.hpp"
#include "client/tools/bench/worker_process.hpp"

namespace hotkv::bench {
namespace {

using nlohmann::json;
using Clock = std::chrono::steady_clock;

// Given to a worker ahead of what it can take at once, so that it finds the next one when it has
// room.
constexpr std::size_t kTasksAhead = 4;
constexpr std::uint32_t kContextTokensMax = 8192;

// ---- which request is whose ---------------------------------------------------------------------

class TaskSource {
 public:
  TaskSource(const std::vector<TraceRequest>& trace, double speed) : trace_(trace), speed_(speed) {}

  // Of the next task, in seconds since the begin.
  [[nodiscard]] double arrival_s() const {
    if (speed_ <= 0) return 0;
    const double round_s = trace_.back().arrival_s + 1;
    const auto rounds = static_cast<double>(next_ / trace_.size());
    return (rounds * round_s + trace_[next_ % trace_.size()].arrival_s) / speed_;
  }
  SoakTask take() {
    const TraceRequest& request = trace_[next_ % trace_.size()];
    SoakTask task;
    task.prompt_tokens = std::clamp(request.input_tokens, 1u, kContextTokensMax / 2);
    task.output_tokens = std::clamp(request.output_tokens, 1u, kContextTokensMax / 4);
    task.release = next_ % 4 == 3;
    if (next_ % 2 == 1 && !cached_.empty()) {
      // By turns one that was served just now, which is cached, and an old one, which hardly is.
      const auto earlier = next_ % 4 == 1 ? std::prev(cached_.end()) : cached_.begin();
      go_on_with(*earlier, task);
      cached_.erase(earlier);
    } else {
      task.session = sessions_++;
    }
    ++next_;
    return task;
  }
  void note(const SoakDone& done) {
    if (done.tokens > 0) cached_.push_back(done);
    constexpr std::size_t kRemembered = 200;  // later ones are found more often
    if (cached_.size() > kRemembered) cached_.pop_front();
  }

 private:
  void go_on_with(const SoakDone& earlier, SoakTask& task) const {
    task.session = earlier.session;
    task.epoch = earlier.epoch;
    const bool is_too_long =
        earlier.tokens + task.prompt_tokens + task.output_tokens > kContextTokensMax;
    if (is_too_long || next_ % 16 == 5) {
      ++task.epoch;  // supersedes what there is
      return;
    }
    task.known_tokens = earlier.tokens;
    task.prompt_tokens += earlier.tokens;
  }

  const std::vector<TraceRequest>& trace_;
  const double speed_;
  std::size_t next_ = 0;
  std::uint32_t sessions_ = 0;
  std::deque<SoakDone> cached_;
};

// ---- the workers --------------------------------------------------------------------------------

class Worker {
 public:
  explicit Worker(const std::string& control_path)
      : process_([&](int socket) { return serve_soak(socket, control_path); }) {}

  [[nodiscard]] bool has_room() const { return tasks_ < SoakWorker::kSequencesMax + kTasksAhead; }
  bool give(const SoakTask& task) {
    ++tasks_;
    return ::send(process_.socket(), &task, sizeof task, MSG_NOSIGNAL) ==
           static_cast<ssize_t>(sizeof task);
  }
  // What it has finished. False if it is gone.
  bool collect(TaskSource& source) {
    SoakDone done;
    for (;;) {
      const ssize_t received = ::recv(process_.socket(), &done, sizeof done, MSG_DONTWAIT);
      if (received < 0) return errno == EAGAIN || errno == EINTR;
      if (received != static_cast<ssize_t>(sizeof done)) return false;
      --tasks_;
      source.note(done);
    }
  }
  void end_of_tasks() { ::shutdown(process_.socket(), SHUT_WR); }
  // Waits for what it is still at, and for its totals. False if it is gone.
  bool finish(SoakTotals& totals) {
    end_of_tasks();
    SoakTotals its;
    for (;;) {
      const ssize_t received = ::recv(process_.socket(), &its, sizeof its, 0);
      if (received == static_cast<ssize_t>(sizeof its)) {
        totals.add(its);
        return true;
      }
      if (received != static_cast<ssize_t>(sizeof(SoakDone))) return false;
    }
  }

 private:
  WorkerProcess process_;
  std::size_t tasks_ = 0;
};

// ---- the daemon
// ----------------------------------------------------------------------------------

std::uint64_t sum_over_shards(const json& status, const std::string& place) {
  std::uint64_t sum = 0;
  for (const json& shard : status.at("shards")) {
    sum += shard.value(json::json_pointer(place), std::uint64_t{0});
  }
  return sum;
}

// Looks at the daemon ten times a second.
class Watch {
 public:
  Watch(const PrivateDaemon& daemon, const SoakOptions& options, SoakReport& report)
      : daemon_(daemon), options_(options), report_(report) {}

  std::expected<void, Error> look(double seconds) {
    const auto tenths = static_cast<std::size_t>(seconds * 10);
    if (tenths == std::exchange(tenths_seen_, tenths)) return {};
    const auto status = status_of(daemon_);
    if (!status) return std::unexpected(status.error());
    report_.budget_bytes = status->value("/limits/max_bytes"_json_pointer, std::uint64_t{0});
    report_.largest_provisioned_bytes =
        std::max(report_.largest_provisioned_bytes,
                 status->value("/account/provisioned_bytes"_json_pointer, std::uint64_t{0}));
    if (report_.own_bytes_early == 0 && seconds * 4 >= options_.seconds) {
      report_.own_bytes_early = own_bytes_of(daemon_);
    }
    if (options_.on_progress) {
      options_.on_progress(std::min<std::size_t>(tenths / 10, options_.seconds));
    }
    return {};
  }

 private:
  const PrivateDaemon& daemon_;
  const SoakOptions& options_;
  SoakReport& report_;
  std::size_t tenths_seen_ = 0;
};

// Until the daemon has seen all its clients go, or for two seconds; what it says then.
std::expected<json, Error> wait_until_alone(const PrivateDaemon& daemon) {
  constexpr int kTries = 100;
  for (int i = 0;; ++i) {
    auto status = status_of(daemon);
    if (!status || i == kTries) return status;
    if (status->value("/server/connections"_json_pointer, 1) == 0) return status;
    std::this_thread::sleep_for(std::chrono::milliseconds(20));
  }
}

// When all workers are gone.
std::expected<void, Error> note_end(SoakReport& report, const PrivateDaemon& daemon) {
  const auto status = wait_until_alone(daemon);
  if (!status) return std::unexpected(status.error());
  report.contexts_ended_lru = sum_over_shards(*status, "/counters/contexts_ended/evicted-lru");
  report.contexts_ended_ttl = sum_over_shards(*status, "/counters/contexts_ended/evicted-ttl");
  report.own_bytes_end = own_bytes_of(daemon);
  report.descriptors_end = descriptors_of(daemon);
  const auto contexts = contexts_of(daemon);
  const auto sound = is_sound(daemon);
  if (!contexts) return std::unexpected(contexts.error());
  if (!sound) return std::unexpected(sound.error());
  const json all = contexts->value("contexts", json::array());
  for (const json& context : all) {
    report.pinned_end += context.value("pinned", false) ? 1 : 0;
  }
  report.is_sound = *sound;
  return {};
}

std::unexpected<Error> worker_ended() {
  return std::unexpected(Error{ErrorCode::system_error, "soak", "a worker", "it ended"});
}

// Hands out tasks as they arrive, until the time is over and all of them are done.
std::expected<void, Error> serve(const std::vector<TraceRequest>& trace,
                                 const PrivateDaemon& daemon, const SoakOptions& options,
                                 SoakReport& report) {
  TaskSource source(trace, options.speed);
  Watch watch(daemon, options, report);
  std::vector<Worker> workers;
  for (std::uint32_t i = 0; i < options.workers; ++i) workers.emplace_back(daemon.control_path());
  const auto begin = Clock::now();
  const auto seconds = [&] { return std::chrono::duration<double>(Clock::now() - begin).count(); };
  for (std::size_t turn = 0; seconds() < options.seconds;) {
    for (Worker& worker : workers) {
      if (!worker.collect(source)) return worker_ended();
    }
    if (auto looked = watch.look(seconds()); !looked) return looked;
    const bool is_due = source.arrival_s() <= seconds();
    if (!is_due || std::ranges::none_of(workers, &Worker::has_room)) {
      report.workers_full_ms += is_due ? 1 : 0;
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
      continue;
    }
    // To the workers in turn, so that a session moves between processes.
    while (!workers[turn % workers.size()].has_room()) ++turn;
    if (!workers[turn++ % workers.size()].give(source.take())) return worker_ended();
  }
  for (Worker& worker : workers) worker.end_of_tasks();
  for (Worker& worker : workers) {
    if (!worker.finish(report.totals)) return worker_ended();
  }
  report.seconds = seconds();
  return {};
}

}  // namespace

std::expected<SoakReport, Error> soak(const std::vector<TraceRequest>& trace,
                                      const PrivateDaemon& daemon, const SoakOptions& options) {
  SoakReport report;
  // Makes the shard, whose files the daemon keeps open; what it opens from here on, it closes.
  if (SoakTotals none; !Worker(daemon.control_path()).finish(none)) return worker_ended();
  if (auto gone = wait_until_alone(daemon); !gone) return std::unexpected(gone.error());
  report.descriptors_before = descriptors_of(daemon);
  if (auto served = serve(trace, daemon, options, report); !served) {
    return std::unexpected(served.error());
  }
  if (auto noted = note_end(report, daemon); !noted) return std::unexpected(noted.error());
  return report;
}

}  // namespace hotkv::bench
