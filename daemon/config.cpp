#include "daemon/config.hpp"

#include <unistd.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <cerrno>
#include <cstdlib>
#include <map>

#include <hotkv/types.hpp>

#include "daemon/config_file.hpp"
#include "daemon/config_keys.hpp"

namespace hotkv {
namespace {

constexpr std::string_view kVersionText = "hotkvd " HOTKV_VERSION "\n";

Error refuse(std::string object, std::string cause) {
  return Error{ErrorCode::configuration_error, "read configuration", std::move(object),
               std::move(cause)};
}

bool is_socket(const ConfigKey& key) {
  return key.flag == "socket" || key.flag == "admin-socket";
}

// Where each key's value came from, for messages about two keys; absent: the default.
using Origins = std::map<std::string_view, std::string>;

std::string origin_of(const Origins& origins, std::string_view flag) {
  const auto found = origins.find(flag);
  return found != origins.end() ? found->second : std::string(flag) + " (default)";
}

// Long flags only, each at most once.
struct Flags {
  CLI::App app{"The daemon that owns the KV cache of LLM sessions in shared memory.", "hotkvd"};
  std::map<std::string_view, CLI::Option*> options;  // by flag
  CLI::Option* config = nullptr;
  CLI::Option* check = nullptr;
  CLI::Option* supervise = nullptr;
  CLI::Option* help = nullptr;
  CLI::Option* version = nullptr;
};

CLI::Option* add_text_option(CLI::App& app, std::string_view flag, std::string_view hint,
                             std::string_view meaning) {
  // All values are kept, so that a flag given twice is refused here with its name.
  return app.add_option("--" + std::string(flag))
      ->type_name(std::string(hint))
      ->description(std::string(meaning))
      ->multi_option_policy(CLI::MultiOptionPolicy::TakeAll);
}

void declare(Flags& flags, const Config& defaults, const Environment& environment) {
  CLI::App& app = flags.app;
  app.set_help_flag();
  app.allow_extras();
  flags.help = app.add_flag("--help")->description("print this and exit");
  flags.version = app.add_flag("--version")->description("print the version and exit");
  flags.check = app.add_flag("--check")->description("check the configuration and exit");
  flags.supervise = app.add_flag(kSuperviseFlag)
                        ->description(
                            "keep the memory over crashes, and start anew: for containers, where "
                            "no systemd does it");
  flags.config = add_text_option(app, "config", "PATH",
                                 "TOML file (default " + environment.default_config_file +
                                     ", if it exists); its keys are the flags below, with _ for -");
  for (const ConfigKey& key : config_keys()) {
    const std::string meaning = std::string(key.meaning) + " (default " + key.show(defaults) + ")";
    flags.options[key.flag] = add_text_option(app, key.flag, key.hint, meaning);
  }
}

Error refuse_argument(const Flags& flags, const std::string& argument) {
  if (!argument.starts_with("-")) {
    return refuse(escape_bytes(argument), "is not a flag, and hotkvd takes nothing else");
  }
  std::vector<std::string_view> known = {"--help", "--version", "--check", kSuperviseFlag,
                                         "--config"};
  std::vector<std::string> names;
  for (const auto& [flag, option] : flags.options) names.push_back("--" + std::string(flag));
  known.insert(known.end(), names.begin(), names.end());
  const std::string name = argument.substr(0, argument.find('='));
  return refuse(escape_bytes(name), "unknown flag; the nearest known flag is " +
                                        std::string(nearest_name(name, known)));
}

std::expected<void, Error> parse_flags(Flags& flags, std::span<const char* const> arguments) {
  // CLI11 takes the arguments in reverse order.
  std::vector<std::string> reversed(arguments.rbegin(), arguments.rend());
  try {
    flags.app.parse(std::move(reversed));
  } catch (const CLI::ParseError& error) {
    return std::unexpected(refuse("command line", error.what()));
  }
  const std::vector<std::string> rest = flags.app.remaining();
  if (!rest.empty()) return std::unexpected(refuse_argument(flags, rest.front()));
  for (const CLI::Option* option : flags.app.get_options()) {
    if (option->count() > 1) {
      return std::unexpected(refuse(option->get_name(), "is given more than once"));
    }
    const bool takes_value = option->get_items_expected_max() > 0;
    if (!takes_value && option->count() == 1 && option->results().front() != "true") {
      return std::unexpected(refuse(option->get_name(), "takes no value"));
    }
  }
  return {};
}

std::expected<void, Error> apply(Config& config, Origins& origins, const ConfigKey& key,
                                 std::string_view text, const std::string& origin) {
  const auto result = key.set(config, text);
  if (!result) return std::unexpected(refuse(origin, result.error()));
  origins[key.flag] = origin;
  return {};
}

// The path of the file that was read, or an empty text.
std::expected<std::string, Error> apply_file(Config& config, Origins& origins, const Flags& flags,
                                             const Environment& environment) {
  const bool is_named = flags.config->count() == 1;
  const std::string path =
      is_named ? flags.config->results().front() : environment.default_config_file;
  const auto settings = read_config_file(path);
  if (!settings) {
    const bool is_absent = settings.error().os_errno == ENOENT;
    if (is_absent && !is_named) return std::string();
    return std::unexpected(settings.error());
  }
  for (const FileSetting& setting : *settings) {
    const auto result = apply(config, origins, *setting.key, setting.text, setting.origin);
    if (!result) return std::unexpected(result.error());
  }
  return path;
}

// Somebody who sets HOTKV_MAX_BYTES believes that it does something. The sockets are an exception:
// clients take them from there, and an operator's shell may have them set for that.
std::expected<void, Error> refuse_variables(const Environment& environment) {
  for (const std::string& variable : environment.hotkv_variables) {
    for (const ConfigKey& key : config_keys()) {
      std::string name = "HOTKV_";
      for (const char c : key.name) {
        name += static_cast<char>(c >= 'a' && c <= 'z' ? c - 'a' + 'A' : c);
      }
      if (variable == name && !is_socket(key)) {
        return std::unexpected(refuse("environment variable " + variable,
                                      "is not read; use --" + std::string(key.flag) + " or " +
                                          std::string(key.name) + " in the file"));
      }
    }
  }
  return {};
}

std::expected<void, Error> refuse_contradictions(const Config& config, const Origins& origins) {
  if (config.max_bytes && config.max_bytes_per_owner &&
      *config.max_bytes_per_owner > *config.max_bytes) {
    return std::unexpected(refuse(origin_of(origins, "max-bytes-per-owner"),
                                  "one owner would have more bytes (" +
                                      std::to_string(*config.max_bytes_per_owner) +
                                      ") than all together (" + std::to_string(*config.max_bytes) +
                                      ", set by " + origin_of(origins, "max-bytes") + ")"));
  }
  if (config.max_shards_per_owner > config.max_shards) {
    return std::unexpected(refuse(origin_of(origins, "max-shards-per-owner"),
                                  "one owner would have more shards (" +
                                      std::to_string(config.max_shards_per_owner) +
                                      ") than all together (" + std::to_string(config.max_shards) +
                                      ", set by " + origin_of(origins, "max-shards") + ")"));
  }
  if (config.socket == config.admin_socket) {
    return std::unexpected(refuse(origin_of(origins, "admin-socket"),
                                  "is the same path as " + origin_of(origins, "socket") + ": " +
                                      escape_bytes(config.socket)));
  }
  return {};
}

Config defaults_for(const Environment& environment) {
  Config config;
  if (!environment.is_root && !environment.xdg_runtime_dir.empty()) {
    config.socket = environment.xdg_runtime_dir + "/hotkv/control.sock";
    config.admin_socket = environment.xdg_runtime_dir + "/hotkv/admin.sock";
  }
  return config;
}

// A socket path made from the environment keeps the same rules as a written one.
std::expected<void, Error> check_default_sockets(Config& config, const Origins& origins) {
  for (const ConfigKey& key : config_keys()) {
    if (!is_socket(key) || origins.contains(key.flag)) continue;
    const auto result = key.set(config, key.show(config));
    if (!result) {
      return std::unexpected(refuse("environment variable XDG_RUNTIME_DIR",
                                    result.error() + "; use --" + std::string(key.flag)));
    }
  }
  return {};
}

}  // namespace

Environment current_environment() {
  Environment environment;
  environment.is_root = ::geteuid() == 0;
  if (const char* folder = std::getenv("XDG_RUNTIME_DIR")) environment.xdg_runtime_dir = folder;
  for (char** variable = environ; variable != nullptr && *variable != nullptr; ++variable) {
    const std::string_view text = *variable;
    if (text.starts_with("HOTKV_")) {
      environment.hotkv_variables.emplace_back(text.substr(0, text.find('=')));
    }
  }
  return environment;
}

std::expected<ParsedCommandLine, Error> parse_command_line(std::span<const char* const> arguments,
                                                           const Environment& environment) {
  ParsedCommandLine parsed;
  parsed.config = defaults_for(environment);
  Flags flags;
  declare(flags, parsed.config, environment);
  if (const auto result = parse_flags(flags, arguments); !result) {
    return std::unexpected(result.error());
  }
  if (flags.help->count() > 0) {
    parsed.action = Action::show_help;
    parsed.text = flags.app.help();
    return parsed;
  }
  if (flags.version->count() > 0) {
    parsed.action = Action::show_version;
    parsed.text = kVersionText;
    return parsed;
  }
  parsed.action = flags.check->count() > 0       ? Action::check
                  : flags.supervise->count() > 0 ? Action::supervise
                                                 : Action::run;

  Origins origins;
  if (const auto result = refuse_variables(environment); !result) {
    return std::unexpected(result.error());
  }
  auto config_file = apply_file(parsed.config, origins, flags, environment);
  if (!config_file) return std::unexpected(config_file.error());
  parsed.config_file = std::move(*config_file);
  for (const ConfigKey& key : config_keys()) {
    const CLI::Option* option = flags.options.at(key.flag);
    if (option->count() == 0) continue;
    const auto result =
        apply(parsed.config, origins, key, option->results().front(), "--" + std::string(key.flag));
    if (!result) return std::unexpected(result.error());
  }
  // Whoever lowers max_shards alone has not asked for a contradiction with a default.
  if (!origins.contains("max-shards-per-owner")) {
    parsed.config.max_shards_per_owner =
        std::min(parsed.config.max_shards_per_owner, parsed.config.max_shards);
  }
  if (const auto result = check_default_sockets(parsed.config, origins); !result) {
    return std::unexpected(result.error());
  }
  if (const auto result = refuse_contradictions(parsed.config, origins); !result) {
    return std::unexpected(result.error());
  }
  return parsed;
}

std::vector<std::pair<std::string, std::string>> describe(const Config& config) {
  std::vector<std::pair<std::string, std::string>> pairs;
  for (const ConfigKey& key : config_keys()) {
    pairs.emplace_back(std::string(key.name), key.show(config));
  }
  return pairs;
}

}  // namespace hotkv
