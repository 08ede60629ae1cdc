// hotkvctl: what the operator asks the daemon.

#include <CLI/CLI.hpp>
#include <cstdio>
#include <string>

#include <hotkv/error.hpp>
#include <hotkv/types.hpp>

#include "client/tools/admin_client.hpp"
#include "client/tools/reports.hpp"

namespace {

using hotkv::tools::Report;

// What a script can tell apart.
constexpr int kExitOk = 0;
constexpr int kExitNotFound = 1;
constexpr int kExitUsage = 2;
constexpr int kExitUnreachable = 3;

struct Question {
  std::string target;
  std::expected<Report, hotkv::Error> (*report)(std::string_view json) = nullptr;
};

int fail(int exit_code, const std::string& text) {
  std::fprintf(stderr, "hotkvctl: %s\n", text.c_str());
  return exit_code;
}

int ask(const std::string& socket, const Question& question, bool as_json) {
  const auto reply = hotkv::tools::admin_get(socket, question.target);
  if (!reply) {
    const bool is_usage = reply.error().code == hotkv::ErrorCode::invalid_argument;
    return fail(is_usage ? kExitUsage : kExitUnreachable, reply.error().message());
  }
  if (reply->status == 400) return fail(kExitUsage, hotkv::tools::error_text(reply->body));
  if (reply->status != 200) return fail(kExitNotFound, hotkv::tools::error_text(reply->body));
  const auto report = question.report(reply->body);
  if (!report) return fail(kExitNotFound, report.error().message());
  std::fputs(as_json ? reply->body.c_str() : report->text.c_str(), stdout);
  return report->found ? kExitOk : kExitNotFound;
}

}  // namespace

int main(int argc, char** argv) {
  CLI::App app("Asks a running hotkvd. Exit: 0 ok, 1 not found, 2 usage, 3 daemon unreachable.",
               "hotkvctl");
  std::string socket = hotkv::tools::default_admin_socket();
  bool as_json = false;
  std::string session;
  app.add_option("--admin-socket", socket, "the daemon's admin socket")->capture_default_str();
  app.add_flag("--json", as_json, "print the daemon's answer as it is");
  app.set_version_flag("--version", "hotkvctl " HOTKV_VERSION);
  app.require_subcommand(1);
  app.fallthrough();
  const auto* const status = app.add_subcommand("status", "budget, connections, shards");
  const auto* const contexts = app.add_subcommand("contexts", "what is cached");
  auto* const why =
      app.add_subcommand("why", "what became of a session; exit 1 if it has no live context");
  why->add_option("session", session, "route session id, 1 to 128 bytes")->required();
  try {
    app.parse(argc, argv);
  } catch (const CLI::ParseError& error) {
    return app.exit(error) == 0 ? kExitOk : kExitUsage;
  }
  if (status->parsed()) return ask(socket, {"/status", hotkv::tools::status_report}, as_json);
  if (contexts->parsed()) {
    return ask(socket, {"/contexts", hotkv::tools::contexts_report}, as_json);
  }
  if (const auto id = hotkv::SessionId::from(session); !id) {
    return fail(kExitUsage, id.error().message());
  }
  return ask(socket,
             {"/why?session=" + hotkv::tools::percent_encoded(session), hotkv::tools::why_report},
             as_json);
}
