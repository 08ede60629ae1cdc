#include "client/tools/bench/replay.hpp"

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <nlohmann/json.hpp>
#include <thread>

#include "client/tools/bench/daemon_status.hpp"
#include "client/tools/bench/replay_worker.hpp"
#include "client/tools/bench/session_book.hpp"
#include "client/tools/text_table.hpp"

namespace hotkv::bench {
namespace {

using nlohmann::json;
using Clock = std::chrono::steady_clock;

std::string name_of(std::uint32_t miss_reason) {
  const auto reason = miss_reason_from_number(miss_reason);
  return reason ? std::string(to_string(*reason)) : "no reason";
}

void add(ReplayReport& report, const ReplayOutcome& outcome) {
  report.tokens_reused += outcome.reused_tokens;
  report.tokens_computed += outcome.computed_tokens;
  report.blocks_reused += outcome.reused_tokens / kTokensPerBlock;
  report.wrong_bytes += outcome.wrong_bytes;
  report.continued += outcome.reused_tokens > 0 ? 1 : 0;
  if (outcome.miss_reason != 0) ++report.misses[name_of(outcome.miss_reason)];
  if (outcome.error_code != 0) {
    const auto code = error_code_from_number(outcome.error_code);
    ++report.errors[code ? std::string(to_string(*code)) : "no code"];
  }
  if (outcome.resolve_ns != 0) report.resolve_ns.push_back(outcome.resolve_ns);
  if (outcome.open_ns != 0) report.open_ns.push_back(outcome.open_ns);
  if (outcome.append_ns != 0) report.append_ns.push_back(outcome.append_ns);
}

std::expected<void, Error> note_provisioned(ReplayReport& report, const PrivateDaemon& daemon) {
  const auto status = status_of(daemon);
  if (!status) return std::unexpected(status.error());
  const auto now = status->value("/account/provisioned_bytes"_json_pointer, std::uint64_t{0});
  report.peak_provisioned_bytes = std::max(report.peak_provisioned_bytes, now);
  return {};
}

std::expected<void, Error> note_end(ReplayReport& report, const PrivateDaemon& daemon) {
  const auto status = status_of(daemon);
  if (!status) return std::unexpected(status.error());
  report.budget_bytes = status->value("/limits/max_bytes"_json_pointer, std::uint64_t{0});
  const json shards = status->value("shards", json::array());
  for (const json& shard : shards) {
    const json ended = shard.value("/counters/contexts_ended"_json_pointer, json::object());
    for (const auto& [reason, count] : ended.items()) {
      if (count.get<std::uint64_t>() > 0) report.evictions[reason] += count.get<std::uint64_t>();
    }
  }
  const auto sound = is_sound(daemon);
  if (!sound) return std::unexpected(sound.error());
  report.is_sound = *sound;
  return {};
}

std::uint64_t quantile(std::vector<std::uint64_t> values, double q) {
  if (values.empty()) return 0;
  std::ranges::sort(values);
  return values[static_cast<std::size_t>(q * static_cast<double>(values.size() - 1))];
}

std::string micros(std::uint64_t ns) {
  const std::uint64_t tenths = ns / 100;
  return std::to_string(tenths / 10) + "." + std::to_string(tenths % 10) + " us";
}

double share(std::uint64_t part, std::uint64_t whole) {
  return whole == 0 ? 0 : 100.0 * static_cast<double>(part) / static_cast<double>(whole);
}

std::string percent(std::uint64_t part, std::uint64_t whole) {
  const auto hundredths = static_cast<std::uint64_t>(share(part, whole) * 100 + 0.5);
  const std::string fraction = std::to_string(hundredths % 100);
  return std::to_string(hundredths / 100) + "." + (fraction.size() < 2 ? "0" : "") + fraction +
         " %";
}

}  // namespace

std::vector<std::string> replay_daemon_flags(const std::string& max_bytes,
                                             std::uint32_t session_cap, const std::string& ttl) {
  return {"--max-bytes=" + max_bytes, "--session-cap=" + std::to_string(session_cap),
          "--default-ttl=" + ttl, "--chunk-tokens=" + std::to_string(kTokensPerBlock),
          "--hugepages=off"};
}

std::uint64_t replay_block_bytes() {
  return replay_recipe().bytes_per_token() * kTokensPerBlock;
}

std::expected<double, Error> speed_from(const std::string& text) {
  if (text == "max") return 0.0;
  double factor = 0;
  char end = 0;
  if (std::sscanf(text.c_str(), "%lf%c", &factor, &end) == 1 && factor > 0) return factor;
  return std::unexpected(Error{ErrorCode::invalid_argument, "read --speed", text,
                               "max, or seconds of the trace for one of the replay"});
}

std::expected<ReplayReport, Error> replay(const std::vector<TraceRequest>& trace,
                                          const PrivateDaemon& daemon,
                                          const ReplayOptions& options) {
  std::vector<ReplayProcess> workers;
  for (std::uint32_t i = 0; i < options.workers; ++i) workers.emplace_back(daemon.control_path());
  SessionBook book;
  ReplayReport report;
  const auto begin = Clock::now();
  for (const TraceRequest& request : trace) {
    if (options.speed > 0) {
      std::this_thread::sleep_until(
          begin + std::chrono::duration_cast<Clock::duration>(
                      std::chrono::duration<double>(request.arrival_s / options.speed)));
    }
    const auto turn = book.next(std::span(request.block_ids).first(request.full_blocks()));
    report.blocks += request.block_ids.size();
    report.continuing += turn.known_blocks > 0 ? 1 : 0;
    const auto outcome = workers[report.requests % workers.size()].run(
        {turn.session, turn.known_blocks * kTokensPerBlock, turn.blocks * kTokensPerBlock});
    if (!outcome) return std::unexpected(outcome.error());
    ++report.requests;
    add(report, *outcome);
    if (auto noted = note_provisioned(report, daemon); !noted) {
      return std::unexpected(noted.error());
    }
    if (options.on_progress) options.on_progress(report.requests);
  }
  report.seconds = std::chrono::duration<double>(Clock::now() - begin).count();
  if (auto noted = note_end(report, daemon); !noted) return std::unexpected(noted.error());
  return report;
}

std::string text_of(const ReplayReport& report) {
  tools::TextTable table({"REPLAY", ""});
  const auto row = [&](std::string name, std::string value) {
    table.add({std::move(name), std::move(value)});
  };
  row("requests", std::to_string(report.requests));
  row("that continue a session", std::to_string(report.continuing));
  row("that found it cached", std::to_string(report.continued));
  row("blocks reused", std::to_string(report.blocks_reused) + " of " +
                           std::to_string(report.blocks) + ", " +
                           percent(report.blocks_reused, report.blocks));
  row("tokens reused", std::to_string(report.tokens_reused));
  row("tokens computed", std::to_string(report.tokens_computed));
  for (const auto& [reason, count] : report.misses) row("misses: " + reason, std::to_string(count));
  for (const auto& [code, count] : report.errors) row("not served: " + code, std::to_string(count));
  for (const auto& [reason, count] : report.evictions) {
    row("contexts ended: " + reason, std::to_string(count));
  }
  row("peak provisioned", tools::human_bytes(report.peak_provisioned_bytes) + " of " +
                              tools::human_bytes(report.budget_bytes));
  row("resolve p50, p99",
      micros(quantile(report.resolve_ns, 0.5)) + ", " + micros(quantile(report.resolve_ns, 0.99)));
  row("open p50, p99",
      micros(quantile(report.open_ns, 0.5)) + ", " + micros(quantile(report.open_ns, 0.99)));
  row("append p50, p99",
      micros(quantile(report.append_ns, 0.5)) + ", " + micros(quantile(report.append_ns, 0.99)));
  row("wrong bytes", std::to_string(report.wrong_bytes));
  row("verify", report.is_sound ? "sound" : "NOT SOUND: see GET /verify");
  return table.text();
}

std::string json_of(const ReplayReport& report) {
  const auto latency = [](const std::vector<std::uint64_t>& ns) {
    return json{
        {"count", ns.size()}, {"p50_ns", quantile(ns, 0.5)}, {"p99_ns", quantile(ns, 0.99)}};
  };
  return json{{"requests", report.requests},
              {"continuing", report.continuing},
              {"continued", report.continued},
              {"blocks", report.blocks},
              {"blocks_reused", report.blocks_reused},
              {"blocks_reused_percent", share(report.blocks_reused, report.blocks)},
              {"tokens_reused", report.tokens_reused},
              {"tokens_computed", report.tokens_computed},
              {"misses", report.misses},
              {"not_served", report.errors},
              {"contexts_ended", report.evictions},
              {"peak_provisioned_bytes", report.peak_provisioned_bytes},
              {"budget_bytes", report.budget_bytes},
              {"resolve", latency(report.resolve_ns)},
              {"open", latency(report.open_ns)},
              {"append", latency(report.append_ns)},
              {"wrong_bytes", report.wrong_bytes},
              {"is_sound", report.is_sound},
              {"seconds", report.seconds}}
      .dump(2);
}

}  // namespace hotkv::bench
