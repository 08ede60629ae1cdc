#pragma once
// Sizes and durations as people write them in a configuration: "16G", "1h30m".
//
// Only what is exactly one of these forms is taken. Anything else (a space, a sign, a fraction, an
// exponent, a wrong letter case, text behind the unit) is refused, because a value that is read as
// something near to what was meant turns a limit off in silence.

#include <chrono>
#include <cstdint>
#include <expected>
#include <string>
#include <string_view>

#include <hotkv/error.hpp>

namespace hotkv {

// A number of bytes: digits and one of
//   nothing or B             bytes
//   K M G T, KiB MiB GiB TiB powers of 1024, as memory is counted and as systemd reads MemoryMax=
//   KB MB GB TB              powers of 1000, as the standard defines them: 16GB is less than 16G
// Errors: configuration_error; `object` is the quoted text, `cause` says what is wrong with it.
[[nodiscard]] std::expected<std::uint64_t, Error> parse_size_bytes(std::string_view text);

// A duration: one or more of digits and unit (d, h, m, s, ms), each unit once and larger ones
// first. A number without a unit is refused. Errors: as above.
[[nodiscard]] std::expected<std::chrono::milliseconds, Error> parse_duration(std::string_view text);

// The shortest text that parses back to the same value: 17179869184 is "16G", 1500 is "1500".
[[nodiscard]] std::string format_size_bytes(std::uint64_t size_bytes);
// 5400000 ms is "1h30m", 0 is "0s". Durations are not negative.
[[nodiscard]] std::string format_duration(std::chrono::milliseconds duration);

}  // namespace hotkv
