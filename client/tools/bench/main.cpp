// hotkv-bench: recorded traffic against a daemon of its own.

#include <CLI/CLI.hpp>

#include "client/tools/bench/commands.hpp"

namespace {

using namespace hotkv::bench;

CLI::App* add_replay(CLI::App& app, ReplayFlags& flags) {
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
  command->add_option("--ttl", flags.ttl, "hotkvd's time to live of idle contexts")
      ->capture_default_str();
  command->add_option("--speed", flags.speed, "max, or seconds of the trace for one of the replay")
      ->capture_default_str();
  command->add_option("--requests", flags.requests, "only the first ones; 0: all");
  command->add_flag("--json", flags.as_json, "print JSON");
  return command;
}

CLI::App* add_curve(CLI::App& app, CurveFlags& flags) {
  auto* const command = app.add_subcommand(
      "curve", "how much of a trace is reused with how much memory, from one pass over it");
  command->add_option("--trace", flags.trace, "JSON lines with blocks")->required();
  command
      ->add_option("--bytes-per-token", flags.bytes_per_token, "K and V of the model to size for")
      ->capture_default_str()
      ->check(CLI::Range(1, 1 << 30));
  command
      ->add_option("--check", flags.check,
                   "replays to compare with: all the memory that is of use, half of it, …")
      ->capture_default_str()
      ->check(CLI::Range(0, 16));
  command->add_option("--workers", flags.workers, "worker processes of a replay")
      ->capture_default_str()
      ->check(CLI::Range(1, 64));
  command->add_option("--requests", flags.requests, "only the first ones; 0: all");
  command->add_option("--csv", flags.csv, "file to write the curve to");
  command->add_option("--svg", flags.svg, "file to draw the curve in");
  return command;
}

CLI::App* add_soak(CLI::App& app, SoakFlags& flags) {
  auto* const command = app.add_subcommand(
      "soak", "lengths and arrivals of a trace, many sequences at once, with little memory");
  command->add_option("--trace", flags.trace, "JSON lines or CSV")->required();
  command->add_option("--seconds", flags.seconds, "how long")
      ->capture_default_str()
      ->check(CLI::Range(1, 86400));
  command->add_option("--workers", flags.workers, "worker processes")
      ->capture_default_str()
      ->check(CLI::Range(1, 64));
  command->add_option("--max-bytes", flags.max_bytes, "hotkvd's budget")->capture_default_str();
  command->add_option("--session-cap", flags.session_cap, "hotkvd's bound on contexts")
      ->capture_default_str();
  command->add_option("--ttl", flags.ttl, "hotkvd's time to live of idle contexts")
      ->capture_default_str();
  command->add_option("--speed", flags.speed, "max, or seconds of the trace for one of the soak")
      ->capture_default_str();
  command->add_flag("--json", flags.as_json, "print JSON");
  return command;
}

}  // namespace

int main(int argc, char** argv) {
  CLI::App app(
      "Recorded traffic against a daemon of its own. Exit: 0 ok, 1 failed or something was wrong, "
      "2 usage.",
      "hotkv-bench");
  app.set_version_flag("--version", "hotkv-bench " HOTKV_VERSION);
  app.require_subcommand(1);
  ReplayFlags replay_flags;
  CurveFlags curve_flags;
  SoakFlags soak_flags;
  const CLI::App* const replay = add_replay(app, replay_flags);
  const CLI::App* const curve = add_curve(app, curve_flags);
  add_soak(app, soak_flags);
  try {
    app.parse(argc, argv);
  } catch (const CLI::ParseError& error) {
    return app.exit(error) == 0 ? kExitOk : kExitUsage;
  }
  if (replay->parsed()) return run_replay(replay_flags);
  if (curve->parsed()) return run_curve(curve_flags);
  return run_soak(soak_flags);
}
