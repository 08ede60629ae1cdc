#pragma once
// The configuration file: TOML, every key at the top level.

#include <expected>
#include <string>
#include <vector>

#include <hotkv/error.hpp>

#include "daemon/config_keys.hpp"

namespace hotkv {

// One key of the file, its value as the text that ConfigKey::set takes.
struct FileSetting {
  const ConfigKey* key = nullptr;
  std::string text;
  std::string origin;  // "/etc/hotkv/hotkvd.toml:12 max_bytes"
};

// The file's settings in the order of the table. Values are checked for their type only.
// Errors: system_error (not readable; ENOENT if it does not exist); configuration_error naming
// file, line and key: not TOML, a key twice, an unknown key, a wrong type.
[[nodiscard]] std::expected<std::vector<FileSetting>, Error> read_config_file(
    const std::string& path);

}  // namespace hotkv
