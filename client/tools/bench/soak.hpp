#pragma once
// Minutes of a service's traffic at its own rhythm, through workers that serve many sequences at
// once, over a daemon with little memory.

#include <cstdint>
#include <expected>
#include <functional>
#include <string>
#include <vector>

#include "client/tools/bench/private_daemon.hpp"
#include "client/tools/bench/soak_worker.hpp"
#include "client/tools/bench/trace.hpp"

namespace hotkv::bench {

struct SoakOptions {
  std::uint32_t workers = 4;
  std::uint32_t seconds = 30;
  // Seconds of the trace for one of the soak; 0: as fast as it goes. A trace that is over begins
  // again.
  double speed = 0;
  std::function<void(std::size_t seconds)> on_progress;  // about once a second
};

struct SoakReport {
  SoakTotals totals;
  double seconds = 0;
  std::uint64_t workers_full_ms = 0;  // in which a request was due and no worker had room
  std::uint64_t budget_bytes = 0;
  std::uint64_t peak_provisioned_bytes = 0;
  std::uint64_t contexts_ended_lru = 0;
  std::uint64_t contexts_ended_ttl = 0;
  // Of the daemon: memory of its own (without the arenas) and descriptors, after a quarter of the
  // time and at the end, when no worker is there any more.
  std::uint64_t own_bytes_early = 0, own_bytes_end = 0;
  std::uint64_t descriptors_before = 0, descriptors_end = 0;
  std::uint64_t pinned_end = 0;  // contexts that are pinned at the end
  bool is_sound = false;         // /verify, at the end

  // What is wrong, in words; empty where nothing is.
  [[nodiscard]] std::vector<std::string> faults() const;
};

// Lengths and arrivals are the trace's; that it says nothing of prefixes is made up for: every
// second request goes on with a session that was served before, some with a higher epoch, every
// fourth is released at its end. Deterministic but for the order in which workers finish.
// Errors: of the daemon and of workers that end; system_error.
[[nodiscard]] std::expected<SoakReport, Error> soak(const std::vector<TraceRequest>& trace,
                                                    const PrivateDaemon& daemon,
                                                    const SoakOptions& options);

// For people, and for programs.
[[nodiscard]] std::string text_of(const SoakReport& report);
[[nodiscard]] std::string json_of(const SoakReport& report);

}  // namespace hotkv::bench
