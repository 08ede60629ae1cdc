#include <cstdio>
#include <filesystem>
#include <fstream>
#include <vector>

#include "client/tools/bench/commands.hpp"
#include "client/tools/bench/curve_report.hpp"
#include "client/tools/bench/private_daemon.hpp"
#include "client/tools/bench/replay.hpp"
#include "client/tools/bench/trace.hpp"

namespace hotkv::bench {
namespace {

// Replays with the memory that suffices for everything, half of it, a quarter, …: where a curve of
// reuse bends.
std::expected<void, Error> measure(CurveReport& report, const std::vector<TraceRequest>& trace,
                                   const CurveFlags& flags) {
  for (std::uint32_t i = flags.check; i > 0; --i) {
    const std::uint64_t blocks = report.curve.enough_blocks() >> (i - 1);
    if (blocks < report.curve.largest_prompt()) {
      std::fprintf(stderr, "hotkv-bench: no check with 1/%u of it: a prompt would not fit\n",
                   1U << (i - 1));
      continue;
    }
    const auto daemon = PrivateDaemon::start(
        replay_daemon_flags(std::to_string(blocks * replay_block_bytes()), kSessionCapMax));
    if (!daemon) return std::unexpected(daemon.error());
    const auto replayed =
        replay(trace, *daemon,
               {.workers = flags.workers, .speed = 0, .on_progress = [&](std::size_t done) {
                  show_progress(done, trace.size(), "requests");
                }});
    if (!replayed) return std::unexpected(replayed.error());
    if (replayed->wrong_bytes != 0 || !replayed->is_sound) {
      return std::unexpected(Error{ErrorCode::shard_damaged, "check", flags.trace,
                                   std::to_string(replayed->wrong_bytes) + " wrong bytes"});
    }
    report.measured.push_back({blocks, {replayed->blocks_reused, replayed->continued}});
  }
  return {};
}

std::expected<void, Error> write_file(const std::string& path, const std::string& text) {
  if (path.empty()) return {};
  std::ofstream file(path, std::ios::binary);
  file << text;
  file.close();
  if (!file) return std::unexpected(system_error("write", path));
  return {};
}

}  // namespace

int run_curve(const CurveFlags& flags) {
  const auto trace = read_trace(flags.trace, flags.requests);
  if (!trace) return fail(trace.error());
  CurveReport report{.curve = ReuseCurve(*trace),
                     .title = std::filesystem::path(flags.trace).filename().string(),
                     .bytes_per_token = flags.bytes_per_token,
                     .measured = {}};
  if (report.curve.most().blocks == 0) {
    return fail({ErrorCode::invalid_argument, "draw a curve of", flags.trace,
                 "no request continues another: nothing can be reused"});
  }
  if (const auto done = measure(report, *trace, flags); !done) return fail(done.error());
  for (const auto& [path, text] :
       {std::pair{flags.csv, csv_of(report)}, {flags.svg, svg_of(report)}}) {
    if (const auto written = write_file(path, text); !written) return fail(written.error());
  }
  std::printf("%s", text_of(report).c_str());
  for (const auto& point : report.measured) {
    if (point.reuse != report.curve.at(point.memory_blocks)) {
      return fail(
          {ErrorCode::shard_damaged, "check", flags.trace,
           "a replay differs from the curve: the daemon did not evict in the order of use"});
    }
  }
  return kExitOk;
}

}  // namespace hotkv::bench
