#include "daemon/human_units.hpp"

#include <array>
#include <charconv>
#include <limits>
#include <optional>
#include <system_error>
#include <utility>

#include <hotkv/types.hpp>

namespace hotkv {
namespace {

struct Unit {
  std::string_view name;
  std::uint64_t factor;
};

constexpr std::uint64_t kKibi = 1024;
constexpr std::uint64_t kKilo = 1000;

constexpr std::array kSizeUnits = {
    Unit{"", 1},
    Unit{"B", 1},
    Unit{"K", kKibi},
    Unit{"KiB", kKibi},
    Unit{"KB", kKilo},
    Unit{"M", kKibi* kKibi},
    Unit{"MiB", kKibi* kKibi},
    Unit{"MB", kKilo* kKilo},
    Unit{"G", kKibi* kKibi* kKibi},
    Unit{"GiB", kKibi* kKibi* kKibi},
    Unit{"GB", kKilo* kKilo* kKilo},
    Unit{"T", kKibi* kKibi* kKibi* kKibi},
    Unit{"TiB", kKibi* kKibi* kKibi* kKibi},
    Unit{"TB", kKilo* kKilo* kKilo* kKilo},
};

// In milliseconds, largest first: the order in which they may follow one another.
constexpr std::array kDurationUnits = {
    Unit{"d", 86'400'000}, Unit{"h", 3'600'000}, Unit{"m", 60'000}, Unit{"s", 1'000}, Unit{"ms", 1},
};

constexpr std::string_view kSizeForms =
    "a size is digits with K, M, G, T (powers of 1024) or KB, MB, GB, TB (powers of 1000), such as "
    "16G";
constexpr std::string_view kDurationForms =
    "a duration is digits with d, h, m, s or ms, larger units first, such as 30m or 1h30m";

// std::chrono counts in signed numbers.
constexpr std::uint64_t kDurationMsMax = std::numeric_limits<std::int64_t>::max();

Error refuse(std::string_view operation, std::string_view text, std::string cause) {
  return Error{ErrorCode::configuration_error, std::string(operation),
               "\"" + escape_bytes(text) + "\"", std::move(cause)};
}

template <std::size_t kCount>
const Unit* find_unit(const std::array<Unit, kCount>& units, std::string_view name) {
  for (const Unit& unit : units) {
    if (unit.name == name) return &unit;
  }
  return nullptr;
}

bool is_digit(char c) {
  return c >= '0' && c <= '9';
}

// Takes the digits at the front of `text`. Nothing if there are none or they overflow.
std::optional<std::uint64_t> take_number(std::string_view& text) {
  std::uint64_t number = 0;
  if (text.empty() || !is_digit(text.front())) return std::nullopt;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number);
  if (error != std::errc{}) return std::nullopt;
  text.remove_prefix(static_cast<std::size_t>(end - text.data()));
  return number;
}

// Takes what stands in front of the next digit.
std::string_view take_unit_name(std::string_view& text) {
  std::size_t length = 0;
  while (length < text.size() && !is_digit(text[length])) ++length;
  const std::string_view name = text.substr(0, length);
  text.remove_prefix(length);
  return name;
}

bool multiply_overflows(std::uint64_t a, std::uint64_t b, std::uint64_t limit) {
  return b != 0 && a > limit / b;
}

}  // namespace

std::expected<std::uint64_t, Error> parse_size_bytes(std::string_view text) {
  constexpr std::string_view kOperation = "read size";
  if (text.empty()) return std::unexpected(refuse(kOperation, text, "is empty"));
  if (!is_digit(text.front())) {
    return std::unexpected(refuse(kOperation, text, std::string(kSizeForms)));
  }
  std::string_view rest = text;
  const std::optional<std::uint64_t> number = take_number(rest);
  if (!number) return std::unexpected(refuse(kOperation, text, "is more than 64 bits of bytes"));
  const Unit* unit = find_unit(kSizeUnits, rest);
  if (unit == nullptr) {
    return std::unexpected(
        refuse(kOperation, text,
               "\"" + escape_bytes(rest) + "\" is no unit of size; " + std::string(kSizeForms)));
  }
  if (multiply_overflows(*number, unit->factor, std::numeric_limits<std::uint64_t>::max())) {
    return std::unexpected(refuse(kOperation, text, "is more than 64 bits of bytes"));
  }
  return *number * unit->factor;
}

std::expected<std::chrono::milliseconds, Error> parse_duration(std::string_view text) {
  constexpr std::string_view kOperation = "read duration";
  if (text.empty()) return std::unexpected(refuse(kOperation, text, "is empty"));
  std::uint64_t total_ms = 0;
  std::uint64_t previous_factor = std::numeric_limits<std::uint64_t>::max();
  std::string_view rest = text;
  while (!rest.empty()) {
    if (!is_digit(rest.front())) {
      return std::unexpected(refuse(kOperation, text, std::string(kDurationForms)));
    }
    const std::optional<std::uint64_t> number = take_number(rest);
    if (!number) return std::unexpected(refuse(kOperation, text, "is too long"));
    const std::string_view name = take_unit_name(rest);
    const Unit* unit = find_unit(kDurationUnits, name);
    if (unit == nullptr) {
      const std::string what = name.empty() ? "has a number without a unit; "
                                            : "\"" + escape_bytes(name) + "\" is no unit of time; ";
      return std::unexpected(refuse(kOperation, text, what + std::string(kDurationForms)));
    }
    if (unit->factor >= previous_factor) {
      return std::unexpected(refuse(kOperation, text, std::string(kDurationForms)));
    }
    previous_factor = unit->factor;
    if (multiply_overflows(*number, unit->factor, kDurationMsMax - total_ms)) {
      return std::unexpected(refuse(kOperation, text, "is too long"));
    }
    total_ms += *number * unit->factor;
  }
  return std::chrono::milliseconds(static_cast<std::int64_t>(total_ms));
}

std::string format_size_bytes(std::uint64_t size_bytes) {
  for (const std::string_view name : {"T", "G", "M", "K"}) {
    const std::uint64_t factor = find_unit(kSizeUnits, name)->factor;
    if (size_bytes != 0 && size_bytes % factor == 0) {
      return std::to_string(size_bytes / factor) + std::string(name);
    }
  }
  return std::to_string(size_bytes);
}

std::string format_duration(std::chrono::milliseconds duration) {
  auto rest_ms = static_cast<std::uint64_t>(duration.count());
  std::string text;
  for (const Unit& unit : kDurationUnits) {
    if (rest_ms >= unit.factor) {
      text += std::to_string(rest_ms / unit.factor) + std::string(unit.name);
      rest_ms %= unit.factor;
    }
  }
  return text.empty() ? "0s" : text;
}

}  // namespace hotkv
