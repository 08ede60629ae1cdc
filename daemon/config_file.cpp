#include "daemon/config_file.hpp"

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <memory>
#include <optional>
#include <utility>

#include <hotkv/types.hpp>

#include <toml++/toml.h>

namespace hotkv {
namespace {

// A configuration is a page of text; more is some other file, such as a device or an image.
constexpr std::size_t kFileBytesMax = std::size_t{1} << 20;

constexpr std::string_view kOperation = "read configuration";

Error refuse(std::string object, std::string cause) {
  return Error{ErrorCode::configuration_error, std::string(kOperation), std::move(object),
               std::move(cause)};
}

std::string place(const std::string& path, const toml::source_region& region) {
  return path + ":" + std::to_string(region.begin.line);
}

std::expected<std::string, Error> read_text(const std::string& path) {
  const std::unique_ptr<std::FILE, int (*)(std::FILE*)> file(std::fopen(path.c_str(), "re"),
                                                             &std::fclose);
  if (!file) return std::unexpected(system_error(std::string(kOperation), path));
  std::string text(kFileBytesMax + 1, '\0');
  errno = 0;
  text.resize(std::fread(text.data(), 1, text.size(), file.get()));
  if (std::ferror(file.get()) != 0) {
    return std::unexpected(system_error(std::string(kOperation), path));
  }
  if (text.size() > kFileBytesMax) {
    return std::unexpected(
        refuse(path, "has more than " + std::to_string(kFileBytesMax) + " bytes"));
  }
  return text;
}

std::string_view type_name(const toml::node& value) {
  switch (value.type()) {
    case toml::node_type::table: return "a table";
    case toml::node_type::array: return "an array";
    case toml::node_type::string: return "a string";
    case toml::node_type::integer: return "an integer";
    case toml::node_type::floating_point: return "a number with a fraction";
    case toml::node_type::boolean: return "a boolean";
    default: return "a date or time";
  }
}

std::string_view wanted_type(ValueForm form) {
  switch (form) {
    case ValueForm::text: return "a string";
    case ValueForm::count: return "an integer";
    case ValueForm::size:
    case ValueForm::text_or_count: return "a string or an integer";
    case ValueForm::words: return "an array of strings";
  }
  return "?";
}

// An array of strings as words with commas between them. Nothing if it is something else, or if a
// word holds a comma itself and would become two.
std::optional<std::string> joined_words(const toml::array& array) {
  std::string text;
  for (const toml::node& element : array) {
    const auto word = element.value_exact<std::string>();
    if (!word || word->find(',') != std::string::npos) return std::nullopt;
    text += (&element == array.get(0) ? "" : ",") + *word;
  }
  return text;
}

// Nothing if the value is not of a type that the form takes.
std::optional<std::string> value_text(const toml::node& value, ValueForm form) {
  const bool takes_string = form != ValueForm::count && form != ValueForm::words;
  const bool takes_integer = form != ValueForm::text && form != ValueForm::words;
  if (takes_string && value.is_string()) return value.value_exact<std::string>();
  if (takes_integer && value.is_integer()) {
    return std::to_string(*value.value_exact<std::int64_t>());
  }
  if (form == ValueForm::words && value.is_array()) return joined_words(*value.as_array());
  return std::nullopt;
}

std::string unknown_key_cause(std::string_view name, const toml::node& value) {
  std::vector<std::string_view> known;
  for (const ConfigKey& key : config_keys()) known.push_back(key.name);
  std::string cause =
      value.is_table() ? "no table is known, keys stand at the top level; " : "unknown key; ";
  return cause + "the nearest known key is " + std::string(nearest_name(name, known));
}

}  // namespace

std::expected<std::vector<FileSetting>, Error> read_config_file(const std::string& path) {
  const auto text = read_text(path);
  if (!text) return std::unexpected(text.error());
  toml::table table;
  try {
    table = toml::parse(*text, path);
  } catch (const toml::parse_error& error) {
    return std::unexpected(refuse(place(path, error.source()), std::string(error.description())));
  }
  std::vector<FileSetting> settings;
  for (const auto& [toml_key, value] : table) {
    const std::string origin = place(path, toml_key.source()) + " " + escape_bytes(toml_key.str());
    const auto key = std::ranges::find(config_keys(), toml_key.str(), &ConfigKey::name);
    if (key == config_keys().end()) {
      return std::unexpected(refuse(origin, unknown_key_cause(toml_key.str(), value)));
    }
    auto setting_text = value_text(value, key->form);
    if (!setting_text) {
      return std::unexpected(refuse(origin, "must be " + std::string(wanted_type(key->form)) +
                                                ", is " + std::string(type_name(value))));
    }
    settings.push_back({&*key, std::move(*setting_text), origin});
  }
  std::ranges::sort(settings, {}, &FileSetting::key);
  return settings;
}

}  // namespace hotkv
