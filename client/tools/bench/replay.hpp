#pragma once
// A trace, request by request, through worker processes and a daemon.

#include <cstdint>
#include <expected>
#include <functional>
#include <map>
#include <string>
#include <vector>

#include "client/tools/bench/private_daemon.hpp"
#include "client/tools/bench/trace.hpp"

namespace hotkv::bench {

struct ReplayOptions {
  std::uint32_t workers = 4;
  // Seconds of the trace for one of the replay; 0: as fast as it goes.
  double speed = 0;
  // Called after each request with the number of those done; for a progress bar.
  std::function<void(std::size_t done)> on_progress;
};

// What a replay came to. Blocks are the trace's, of 512 tokens there.
struct ReplayReport {
  std::uint64_t requests = 0;
  std::uint64_t continuing = 0;  // requests whose session had blocks of them once
  std::uint64_t continued = 0;   // of those, the ones that found them still cached
  std::uint64_t blocks = 0;      // of all prompts, part-filled last ones included
  std::uint64_t blocks_reused = 0;
  std::uint64_t tokens_reused = 0;  // of the replay's own, smaller tokens
  std::uint64_t tokens_computed = 0;
  std::uint64_t wrong_bytes = 0;
  std::map<std::string, std::uint64_t> misses;     // by reason
  std::map<std::string, std::uint64_t> errors;     // requests that were not served, by code
  std::map<std::string, std::uint64_t> evictions;  // contexts that the daemon ended, by reason
  std::uint64_t peak_provisioned_bytes = 0;        // by the daemon's account, after each request
  std::uint64_t budget_bytes = 0;
  bool is_sound = false;  // /verify, at the end
  double seconds = 0;
  std::vector<std::uint64_t> resolve_ns, open_ns, append_ns;
};

inline constexpr std::uint32_t kSessionCapMax = 100000;
// Flags of a daemon for replays: a chunk a block. `max_bytes` and `ttl` as hotkvd takes them.
[[nodiscard]] std::vector<std::string> replay_daemon_flags(const std::string& max_bytes,
                                                           std::uint32_t session_cap,
                                                           const std::string& ttl = "off");
// What a block of the trace takes in such a daemon.
[[nodiscard]] std::uint64_t replay_block_bytes();
// "max" (0), or seconds of the trace for one of the replay. Errors: invalid_argument.
[[nodiscard]] std::expected<double, Error> speed_from(const std::string& text);

// One request at a time, in the trace's order, to the workers in turn: a session moves from worker
// to worker, and the same order gives the same result whatever their number. Errors: of the daemon
// and of workers that end; system_error.
[[nodiscard]] std::expected<ReplayReport, Error> replay(const std::vector<TraceRequest>& trace,
                                                        const PrivateDaemon& daemon,
                                                        const ReplayOptions& options);

// For people, and for programs.
[[nodiscard]] std::string text_of(const ReplayReport& report);
[[nodiscard]] std::string json_of(const ReplayReport& report);

}  // namespace hotkv::bench
