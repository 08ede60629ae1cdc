#pragma once
// What the daemon tells systemd about itself. Without a service manager every call does nothing.

#include <chrono>
#include <expected>
#include <optional>
#include <string_view>

#include <hotkv/error.hpp>

namespace hotkv::platform {

class ServiceManager {
 public:
  // Whether a service manager waits for our notifications ($NOTIFY_SOCKET).
  [[nodiscard]] bool running_under_systemd() const;

  // Start-up is over; `status` is the line that `systemctl status` shows. Once the kept memory is
  // adopted or refused, not before: clients are let in on it. Errors: system_error.
  [[nodiscard]] std::expected<void, Error> ready(std::string_view status) const;
  [[nodiscard]] std::expected<void, Error> stopping() const;

  // The time within which the manager wants a ping, if it does; ping at half of it, from the event
  // loop, so that a hung loop is noticed. Errors: system_error (the variables make no sense).
  [[nodiscard]] std::expected<std::optional<std::chrono::microseconds>, Error> watchdog_interval()
      const;
  [[nodiscard]] std::expected<void, Error> ping() const;
};

}  // namespace hotkv::platform
