#include "daemon/platform/service_manager.hpp"

#include <systemd/sd-daemon.h>

#include <algorithm>
#include <cstdint>
#include <cstdlib>
#include <string>

namespace hotkv::platform {
namespace {

std::expected<void, Error> notify(const std::string& state) {
  // The environment is kept, as later notifications need it. 0 means that nobody listens.
  const int result = ::sd_notify(0, state.c_str());
  if (result < 0) return std::unexpected(system_error("notify", "service manager", -result));
  return {};
}

}  // namespace

bool ServiceManager::running_under_systemd() const {
  const char* socket = std::getenv("NOTIFY_SOCKET");
  return socket != nullptr && *socket != '\0';
}

std::expected<void, Error> ServiceManager::ready(std::string_view status) const {
  std::string line(status);
  std::replace(line.begin(), line.end(), '\n', ' ');  // a line end would begin another variable
  return notify("READY=1\nSTATUS=" + line);
}

std::expected<void, Error> ServiceManager::stopping() const {
  return notify("STOPPING=1");
}

std::expected<std::optional<std::chrono::microseconds>, Error> ServiceManager::watchdog_interval()
    const {
  std::uint64_t interval_us = 0;
  const int result = ::sd_watchdog_enabled(0, &interval_us);
  if (result < 0) {
    return std::unexpected(system_error("read the watchdog of", "service manager", -result));
  }
  if (result == 0) return std::nullopt;
  return std::chrono::microseconds(interval_us);
}

std::expected<void, Error> ServiceManager::ping() const {
  return notify("WATCHDOG=1");
}

}  // namespace hotkv::platform
