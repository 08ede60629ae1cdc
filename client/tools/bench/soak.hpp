#pragma once
// Minutes of a service's traffic at its own rhythm, through workers that serve many sequences at
// once, over a daemon with little memory.

#include <cstdint>
#include <expected>
#include <functional>
#include <vector>

#include "client/tools/bench/private_daemon.hpp"
#include "client/tools/bench/soak_report.hpp"
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

// Lengths and arrivals are the trace's; that it says nothing of prefixes is made up for: every
// second request goes on with a session that was served before, some with a higher epoch, every
// fourth is released at its end. Deterministic but for the order in which workers finish.
// Errors: of the daemon and of workers that end; system_error.
[[nodiscard]] std::expected<SoakReport, Error> soak(const std::vector<TraceRequest>& trace,
                                                    const PrivateDaemon& daemon,
                                                    const SoakOptions& options);

}  // namespace hotkv::bench
