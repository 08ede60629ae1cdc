#pragma once
// What the benchmark's daemon says of itself, parsed.

#include <expected>
#include <nlohmann/json_fwd.hpp>

#include <hotkv/error.hpp>

#include "client/tools/bench/private_daemon.hpp"

namespace hotkv::bench {

// Objects. Errors: admin_get's; protocol_error where it is none.
[[nodiscard]] std::expected<nlohmann::json, Error> status_of(const PrivateDaemon& daemon);
[[nodiscard]] std::expected<nlohmann::json, Error> contexts_of(const PrivateDaemon& daemon);
// Whether /verify finds no fault. Errors: the same.
[[nodiscard]] std::expected<bool, Error> is_sound(const PrivateDaemon& daemon);

}  // namespace hotkv::bench
