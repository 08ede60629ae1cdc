// hotkv-bench: recorded traffic against a daemon of its own.

#include <unistd.h>

#include <CLI/CLI.hpp>
#include <cstdio>
#include <string>
#include <vector>

#include "client/tools/bench/private_daemon.hpp"
#include "client/tools/bench/replay.hpp"
#include "client/tools/bench/trace.hpp"

namespace {

using namespace hotkv;

constexpr int kExitOk = 0;
constexpr int kExitFailed = 1;
constexpr int kExitUsage = 2;

struct ReplayFlags {
  std::string trace, max_bytes = "4G", ttl, speed = "max";
  std::uint32_t workers = 4;
  std::uint32_t session_cap = 100000;
  std::size_t requests = 0;
  bool as_json = false;
};

int fail(const Error& error) {
  std::fprintf(stderr, "hotkv-bench: %s\n", error.message().c_str());
  return error.code == ErrorCode::invalid_argument ? kExitUsage : kExitFailed;
}

// "max", or a factor above 0.
std::optional<double> speed_from(const std::string& text) {
  if (text == "max") return 0.0;
  double factor = 0;
  char end = 0;
  if (std::sscanf(text.c_str(), "%lf%c", &factor, &end) != 1 || !(factor > 0)) return std::nullopt;
  return factor;
}

void show_progress(std::size_t done, std::size_t all) {
  constexpr int kWidth = 50;
  if (done % 50 != 0 && done != all) return;
  const int filled = static_cast<int>(done * kWidth / all);
  std::fprintf(stderr, "\r[%-*.*s] %zu of %zu requests%s", kWidth, filled,
               "##################################################", done, all,
               done == all ? "\n" : "");
}

int replay(const ReplayFlags& flags) {
  const auto speed = speed_from(flags.speed);
  if (!speed) {
    return fail({ErrorCode::invalid_argument, "read --speed", flags.speed,
                 "max, or seconds of the trace for one of the replay"});
  }
  const auto trace =
      bench::read_trace(flags.trace, flags.requests == 0 ? ~std::size_t{0} : flags.requests);
  if (!trace) return fail(trace.error());
  std::vector<std::string> daemon_flags{"--max-bytes=" + flags.max_bytes,
                                        "--session-cap=" + std::to_string(flags.session_cap),
                                        "--chunk-tokens=16", "--hugepages=off"};
  if (!flags.ttl.empty()) daemon_flags.push_back("--default-ttl=" + flags.ttl);
  const auto daemon = bench::PrivateDaemon::start(daemon_flags);
  if (!daemon) return fail(daemon.error());
  bench::ReplayOptions options{.workers = flags.workers, .speed = *speed, .on_progress = {}};
  if (::isatty(STDERR_FILENO)) {
    options.on_progress = [&](std::size_t done) { show_progress(done, trace->size()); };
  }
  const auto report = bench::replay(*trace, *daemon, options);
  if (!report) return fail(report.error());
  std::printf("%s\n",
              flags.as_json ? bench::json_of(*report).c_str() : bench::text_of(*report).c_str());
  return report->wrong_bytes == 0 ? kExitOk : kExitFailed;
}

}  // namespace

int main(int argc, char** argv) {
  CLI::App app(
      "Replays recorded traffic against a daemon of its own. Exit: 0 ok, 1 failed or wrong "
      "bytes, 2 usage.",
      "hotkv-bench");
  app.set_version_flag("--version", "hotkv-bench " HOTKV_VERSION);
  app.require_subcommand(1);
  ReplayFlags flags;
  auto* const command = app.add_subcommand(
      "replay",
      "every request of a trace, through worker processes that check each byte they reuse");
  command->add_option("--trace", flags.trace, "JSON lines or CSV, see the README")->required();
  command->add_option("--workers", flags.workers, "worker processes")
      ->capture_default_str()
      ->check(CLI::Range(1, 64));
  command->add_option("--max-bytes", flags.max_bytes, "hotkvd's budget")->capture_default_str();
  command->add_option("--session-cap", flags.session_cap, "hotkvd's bound on contexts")
      ->capture_default_str();
  command->add_option("--ttl", flags.ttl, "hotkvd's time to live of idle contexts");
  command->add_option("--speed", flags.speed, "max, or seconds of the trace for one of the replay")
      ->capture_default_str();
  command->add_option("--requests", flags.requests, "only the first ones; 0: all");
  command->add_flag("--json", flags.as_json, "print JSON");
  try {
    app.parse(argc, argv);
  } catch (const CLI::ParseError& error) {
    return app.exit(error) == 0 ? kExitOk : kExitUsage;
  }
  return replay(flags);
}
