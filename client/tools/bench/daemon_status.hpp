#pragma once
// What the benchmark's daemon says of itself, parsed, and what the kernel says of it.

#include <cstdint>
#include <expected>
#include <nlohmann/json_fwd.hpp>
#include <optional>

#include <hotkv/error.hpp>

#include "client/tools/bench/private_daemon.hpp"

namespace hotkv::bench {

// Objects. Errors: admin_get's; protocol_error where it is none.
[[nodiscard]] std::expected<nlohmann::json, Error> status_of(const PrivateDaemon& daemon);
[[nodiscard]] std::expected<nlohmann::json, Error> contexts_of(const PrivateDaemon& daemon);
// Whether /verify finds no fault. Errors: the same.
[[nodiscard]] std::expected<bool, Error> is_sound(const PrivateDaemon& daemon);

// Memory of its own, without the arenas.
[[nodiscard]] std::uint64_t own_bytes_of(const PrivateDaemon& daemon);
// How many descriptors it has open at rest: the fewest of some looks within 200 ms, since it closes
// a connection a moment after its client. Nothing where they cannot be seen: by anybody but root.
[[nodiscard]] std::optional<std::uint64_t> descriptors_of(const PrivateDaemon& daemon);

}  // namespace hotkv::bench
