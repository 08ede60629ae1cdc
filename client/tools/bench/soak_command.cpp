#include <cstdio>

#include "client/tools/bench/commands.hpp"
#include "client/tools/bench/private_daemon.hpp"
#include "client/tools/bench/replay.hpp"
#include "client/tools/bench/soak.hpp"
#include "client/tools/bench/trace.hpp"

namespace hotkv::bench {

int run_soak(const SoakFlags& flags) {
  const auto speed = speed_from(flags.speed);
  if (!speed) return fail(speed.error());
  const auto trace = read_trace(flags.trace);
  if (!trace) return fail(trace.error());
  const auto daemon =
      PrivateDaemon::start(replay_daemon_flags(flags.max_bytes, flags.session_cap, flags.ttl));
  if (!daemon) return fail(daemon.error());
  const auto report =
      soak(*trace, *daemon,
           {.workers = flags.workers,
            .seconds = flags.seconds,
            .speed = *speed,
            .on_progress = [&](std::size_t now) { show_progress(now, flags.seconds, "seconds"); }});
  if (!report) return fail(report.error());
  std::printf("%s\n", flags.as_json ? json_of(*report).c_str() : text_of(*report).c_str());
  return report->faults().empty() ? kExitOk : kExitFailed;
}

}  // namespace hotkv::bench
