// hotkvd: the daemon that owns the KV cache.

#include <cerrno>
#include <cstdio>
#include <exception>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include <hotkv/error.hpp>

#include "daemon/config.hpp"
#include "daemon/daemon.hpp"
#include "daemon/effective_limits.hpp"
#include "daemon/supervisor.hpp"

namespace {

// What a script can tell apart.
constexpr int kExitOther = 1;
constexpr int kExitConfiguration = 2;
constexpr int kExitAddressInUse = 3;
constexpr int kExitPermission = 4;

int exit_code(const hotkv::Error& error) {
  using enum hotkv::ErrorCode;
  if (error.code == address_in_use) return kExitAddressInUse;
  if (error.code == configuration_error || error.code == invalid_argument) {
    return kExitConfiguration;
  }
  if (error.code == access_denied || error.os_errno == EACCES || error.os_errno == EPERM) {
    return kExitPermission;
  }
  return kExitOther;
}

int fail(const hotkv::Error& error) {
  std::fprintf(stderr, "hotkvd: %s\n", error.message().c_str());
  return exit_code(error);
}

int serve(const hotkv::Config& config) {
  const auto daemon = hotkv::Daemon::start(config, hotkv::ProcessIs::ours);
  if (!daemon) return fail(daemon.error());
  (*daemon)->run();
  return 0;
}

// What is written, and what of it contradicts this machine.
int check(const hotkv::Config& config) {
  const auto limits = hotkv::effective_limits(config, hotkv::read_machine_facts());
  return limits ? 0 : fail(limits.error());
}

// A child with all flags but the one that says so.
int supervise(const hotkv::Config& config, int argc, char** argv) {
  std::vector<std::string> arguments(argv, argv + argc);
  // Also "--supervise=true", or the child would supervise, too.
  std::erase_if(arguments, [](const std::string& argument) {
    return argument.substr(0, argument.find('=')) == hotkv::kSuperviseFlag;
  });
  // Three files a shard, and as many of refused ones whose clients live; and the daemon's own.
  constexpr std::size_t kFilesOfAShard = 2 * 3;
  return hotkv::supervise(std::move(arguments), config.max_shards * kFilesOfAShard + 1);
}

}  // namespace

int main(int argc, char** argv) {
  const auto parsed = hotkv::parse_command_line(
      std::span<const char* const>(argv, static_cast<std::size_t>(argc)).subspan(1),
      hotkv::current_environment());
  if (!parsed) {  // also where its file cannot be read
    fail(parsed.error());
    return kExitConfiguration;
  }
  switch (parsed->action) {
    case hotkv::Action::show_help:
    case hotkv::Action::show_version: std::fputs(parsed->text.c_str(), stdout); return 0;
    case hotkv::Action::check: return check(parsed->config);
    case hotkv::Action::supervise: return supervise(parsed->config, argc, argv);
    case hotkv::Action::run: return serve(parsed->config);
  }
  return kExitOther;
}
