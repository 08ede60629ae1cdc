#include "client/tools/bench/soak.hpp"

#include <poll.h>
#include <sys/socket.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <deque>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <thread>

#include "client/tools/bench/daemon_status.hpp"
#include "client/tools/bench/worker_process.hpp"
#include "client/tools/text_table.hpp"

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

// ---- the daemon, from outside -------------------------------------------------------------------

std::uint64_t own_bytes_of(pid_t pid) {
  std::ifstream status("/proc/" + std::to_string(pid) + "/status");
  for (std::string word; status >> word;) {
    std::uint64_t kib = 0;
    if (word == "RssAnon:" && status >> kib) return kib * 1024;
  }
  return 0;
}

std::uint64_t descriptors_now(pid_t pid) {
  std::error_code failure;
  const std::filesystem::directory_iterator entries("/proc/" + std::to_string(pid) + "/fd",
                                                    failure);
  return failure ? 0 : static_cast<std::uint64_t>(std::distance(begin(entries), end(entries)));
}

// At rest: the fewest of some looks, since the daemon closes a connection a moment after its
// client.
std::uint64_t descriptors_of(pid_t pid) {
  constexpr int kLooks = 20;
  std::uint64_t fewest = descriptors_now(pid);
  for (int i = 1; i < kLooks; ++i) {
    std::this_thread::sleep_for(std::chrono::milliseconds(10));
    fewest = std::min(fewest, descriptors_now(pid));
  }
  return fewest;
}

std::uint64_t sum_over_shards(const json& status, const std::string& place) {
  std::uint64_t sum = 0;
  for (const json& shard : status.at("shards")) {
    sum += shard.value(json::json_pointer(place), std::uint64_t{0});
  }
  return sum;
}

std::expected<void, Error> note_peak(SoakReport& report, const PrivateDaemon& daemon) {
  const auto status = status_of(daemon);
  if (!status) return std::unexpected(status.error());
  report.budget_bytes = status->value("/limits/max_bytes"_json_pointer, std::uint64_t{0});
  report.peak_provisioned_bytes =
      std::max(report.peak_provisioned_bytes,
               status->value("/account/provisioned_bytes"_json_pointer, std::uint64_t{0}));
  return {};
}

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
  report.own_bytes_end = own_bytes_of(daemon.pid());
  report.descriptors_end = descriptors_of(daemon.pid());
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

}  // namespace

std::expected<SoakReport, Error> soak(const std::vector<TraceRequest>& trace,
                                      const PrivateDaemon& daemon, const SoakOptions& options) {
  SoakReport report;
  // Makes the shard, whose files the daemon keeps open; what it opens from here on, it closes.
  if (SoakTotals none; !Worker(daemon.control_path()).finish(none)) return worker_ended();
  if (auto gone = wait_until_alone(daemon); !gone) return std::unexpected(gone.error());
  report.descriptors_before = descriptors_of(daemon.pid());
  TaskSource source(trace, options.speed);
  {
    std::vector<Worker> workers;
    for (std::uint32_t i = 0; i < options.workers; ++i) workers.emplace_back(daemon.control_path());
    const auto begin = Clock::now();
    const auto seconds = [&] {
      return std::chrono::duration<double>(Clock::now() - begin).count();
    };
    std::size_t seconds_seen = 0;
    for (std::size_t turn = 0; seconds() < options.seconds;) {
      for (Worker& worker : workers) {
        if (!worker.collect(source)) return worker_ended();
      }
      if (source.arrival_s() > seconds()) {
        std::this_thread::sleep_for(std::chrono::milliseconds(1));
      } else if (const auto free = std::ranges::find_if(workers, &Worker::has_room);
                 free == workers.end()) {
        report.workers_full_ms += 1;
        std::this_thread::sleep_for(std::chrono::milliseconds(1));
      } else {
        // To the workers in turn, so that a session moves between processes.
        while (!workers[turn % workers.size()].has_room()) ++turn;
        if (!workers[turn++ % workers.size()].give(source.take())) return worker_ended();
      }
      if (const auto now = static_cast<std::size_t>(seconds()); now > seconds_seen) {
        seconds_seen = now;
        if (auto noted = note_peak(report, daemon); !noted) return std::unexpected(noted.error());
        if (report.own_bytes_early == 0 && now * 4 >= options.seconds) {
          report.own_bytes_early = own_bytes_of(daemon.pid());
        }
        if (options.on_progress) options.on_progress(std::min<std::size_t>(now, options.seconds));
      }
    }
    for (Worker& worker : workers) worker.end_of_tasks();
    for (Worker& worker : workers) {
      if (!worker.finish(report.totals)) return worker_ended();
    }
    report.seconds = seconds();
  }
  if (auto noted = note_end(report, daemon); !noted) return std::unexpected(noted.error());
  return report;
}

std::vector<std::string> SoakReport::faults() const {
  // What an allocator keeps after a peak; a leak of a session in a hundred would be far above it.
  constexpr std::uint64_t kSlackBytes = std::uint64_t{8} << 20;
  std::vector<std::string> faults;
  const auto check = [&](bool holds, const char* fault) {
    if (!holds) faults.emplace_back(fault);
  };
  check(totals.wrong_bytes == 0, "wrong bytes were seen");
  check(peak_provisioned_bytes <= budget_bytes, "the budget was passed");
  check(is_sound, "verify found a fault");
  check(pinned_end == 0, "contexts are pinned though nobody is there");
  check(descriptors_end <= descriptors_before, "the daemon lost descriptors");
  check(own_bytes_end <= own_bytes_early + kSlackBytes, "the daemon's own memory grew");
  check(totals.bytes_checked > 0, "nothing was checked");
  return faults;
}

std::string text_of(const SoakReport& report) {
  const SoakTotals& totals = report.totals;
  tools::TextTable table({"SOAK", ""});
  const auto row = [&](std::string name, std::string value) {
    table.add({std::move(name), std::move(value)});
  };
  const auto count = [&](std::string name, std::uint64_t value) {
    row(std::move(name), std::to_string(value));
  };
  const auto micros = [](std::uint64_t ns) { return std::to_string(ns / 1000) + " us"; };
  const auto quantiles = [&](const LatencyHistogram& times) {
    return micros(times.quantile_ns(0.5)) + ", " + micros(times.quantile_ns(0.99));
  };
  count("seconds", static_cast<std::uint64_t>(report.seconds));
  count("requests", totals.tasks);
  count("interrupted", totals.interrupted);
  count("ms in which all workers were full", report.workers_full_ms);
  count("tokens reused", totals.tokens_reused);
  count("tokens prefilled", totals.tokens_prefilled);
  count("tokens decoded", totals.tokens_decoded);
  count("tokens rolled back", totals.tokens_rolled_back);
  for (std::size_t i = 1; i < totals.misses.size(); ++i) {
    const auto reason = miss_reason_from_number(static_cast<std::uint32_t>(i));
    if (totals.misses[i] == 0 || !reason) continue;
    count("misses: " + std::string(to_string(*reason)), totals.misses[i]);
  }
  for (std::size_t i = 1; i < kErrorCodes; ++i) {
    if (totals.refusals[i] == 0) continue;
    count("refused: " + std::string(to_string(static_cast<ErrorCode>(i))), totals.refusals[i]);
  }
  count("contexts ended: evicted-lru", report.contexts_ended_lru);
  count("contexts ended: evicted-ttl", report.contexts_ended_ttl);
  row("peak provisioned", tools::human_bytes(report.peak_provisioned_bytes) + " of " +
                              tools::human_bytes(report.budget_bytes));
  row("daemon's own memory", tools::human_bytes(report.own_bytes_early) + ", at the end " +
                                 tools::human_bytes(report.own_bytes_end));
  count("daemon's descriptors before", report.descriptors_before);
  count("and at the end", report.descriptors_end);
  row("resolve p50, p99", quantiles(totals.resolve));
  row("appends of a step p50, p99", quantiles(totals.step));
  row("checked", tools::human_bytes(totals.bytes_checked));
  count("wrong bytes", totals.wrong_bytes);
  for (const std::string& fault : report.faults()) row("FAULT", fault);
  return table.text();
}

std::string json_of(const SoakReport& report) {
  const SoakTotals& totals = report.totals;
  const auto latency = [](const LatencyHistogram& times) {
    return json{{"count", times.count()},
                {"p50_ns", times.quantile_ns(0.5)},
                {"p99_ns", times.quantile_ns(0.99)}};
  };
  json misses = json::object();
  for (std::size_t i = 1; i < totals.misses.size(); ++i) {
    const auto reason = miss_reason_from_number(static_cast<std::uint32_t>(i));
    if (totals.misses[i] > 0 && reason) misses[std::string(to_string(*reason))] = totals.misses[i];
  }
  json refused = json::object();
  for (std::size_t i = 1; i < kErrorCodes; ++i) {
    if (totals.refusals[i] > 0) {
      refused[std::string(to_string(static_cast<ErrorCode>(i)))] = totals.refusals[i];
    }
  }
  return json{
      {"seconds", report.seconds},
      {"requests", totals.tasks},
      {"interrupted", totals.interrupted},
      {"workers_full_ms", report.workers_full_ms},
      {"steps", totals.steps},
      {"tokens_reused", totals.tokens_reused},
      {"tokens_prefilled", totals.tokens_prefilled},
      {"tokens_decoded", totals.tokens_decoded},
      {"tokens_rolled_back", totals.tokens_rolled_back},
      {"misses", std::move(misses)},
      {"refused", std::move(refused)},
      {"contexts_ended",
       {{"evicted-lru", report.contexts_ended_lru}, {"evicted-ttl", report.contexts_ended_ttl}}},
      {"peak_provisioned_bytes", report.peak_provisioned_bytes},
      {"budget_bytes", report.budget_bytes},
      {"own_bytes_early", report.own_bytes_early},
      {"own_bytes_end", report.own_bytes_end},
      {"descriptors_before", report.descriptors_before},
      {"descriptors_end", report.descriptors_end},
      {"resolve", latency(totals.resolve)},
      {"step", latency(totals.step)},
      {"bytes_checked", totals.bytes_checked},
      {"wrong_bytes", totals.wrong_bytes},
      {"faults", report.faults()}}
      .dump(2);
}

}  // namespace hotkv::bench
