#include "client/tools/bench/soak_report.hpp"

#include <nlohmann/json.hpp>
#include <utility>

#include "client/tools/text_table.hpp"

namespace hotkv::bench {

using nlohmann::json;

std::vector<std::string> SoakReport::faults() const {
  // What an allocator keeps after a peak; a leak of a session in a hundred would be far above it.
  constexpr std::uint64_t kSlackBytes = std::uint64_t{8} << 20;
  std::vector<std::string> faults;
  const auto check = [&](bool holds, const char* fault) {
    if (!holds) faults.emplace_back(fault);
  };
  check(totals.wrong_bytes == 0, "wrong bytes were seen");
  check(largest_provisioned_bytes <= budget_bytes, "the budget was passed");
  check(is_sound, "verify found a fault");
  check(pinned_end == 0, "contexts are pinned though nobody is there");
  check(!descriptors_end || *descriptors_end <= *descriptors_before, "the daemon lost descriptors");
  check(own_bytes_end <= own_bytes_early + kSlackBytes, "the daemon's own memory grew");
  check(totals.interrupted * 2 < totals.tasks, "most requests were interrupted");
  check(totals.tokens_decoded > 0 && totals.bytes_checked > 0, "nothing was decoded and checked");
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
  row("largest provisioned", tools::human_bytes(report.largest_provisioned_bytes) + " of " +
                                 tools::human_bytes(report.budget_bytes));
  row("daemon's own memory", tools::human_bytes(report.own_bytes_early) + ", at the end " +
                                 tools::human_bytes(report.own_bytes_end));
  const auto seen = [](const std::optional<std::uint64_t>& number) {
    return number ? std::to_string(*number) : "not visible";
  };
  row("daemon's descriptors",
      seen(report.descriptors_before) + ", at the end " + seen(report.descriptors_end));
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
  const auto optional = [](const std::optional<std::uint64_t>& number) {
    return number ? json(*number) : json(nullptr);
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
      {"largest_provisioned_bytes", report.largest_provisioned_bytes},
      {"budget_bytes", report.budget_bytes},
      {"own_bytes_early", report.own_bytes_early},
      {"own_bytes_end", report.own_bytes_end},
      {"descriptors_before", optional(report.descriptors_before)},
      {"descriptors_end", optional(report.descriptors_end)},
      {"resolve", latency(totals.resolve)},
      {"step", latency(totals.step)},
      {"bytes_checked", totals.bytes_checked},
      {"wrong_bytes", totals.wrong_bytes},
      {"faults", report.faults()}}
      .dump(2);
}

}  // namespace hotkv::bench
