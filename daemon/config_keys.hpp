#pragma once
// The table of configuration keys: the one place that knows their names, forms and meanings.

#include <expected>
#include <span>
#include <string>
#include <string_view>

#include "daemon/config.hpp"

namespace hotkv {

// How a value is written. In the file: text is a string, a count an integer, a size or chunk length
// either, words an array of strings. As a flag all are text, words separated by commas.
enum class ValueForm { text, count, size, text_or_count, words };

struct ConfigKey {
  std::string_view flag;  // "max-bytes": behind "--" as a flag
  std::string_view name;  // "max_bytes": in the file
  ValueForm form = ValueForm::text;
  std::string_view hint;     // "SIZE|auto"
  std::string_view meaning;  // one line, for --help
  // Sets the field from text. The error says what is wrong with the text, without naming the key.
  std::expected<void, std::string> (*set)(Config& config, std::string_view text) = nullptr;
  // The field as text that `set` takes.
  std::string (*show)(const Config& config) = nullptr;
};

// In the order of hotkvd.toml.
[[nodiscard]] std::span<const ConfigKey> config_keys();

// The known name with the fewest single-letter changes from `unknown` (inserted, dropped, replaced
// or swapped with its neighbour).
[[nodiscard]] std::string_view nearest_name(std::string_view unknown,
                                            std::span<const std::string_view> known);

}  // namespace hotkv
