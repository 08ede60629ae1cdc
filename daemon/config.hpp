#pragma once
// The daemon's configuration: one struct, filled from defaults, then a TOML file, then flags.
//
// Every key has one entry in the table of config_keys.hpp; flag, TOML key and description come from
// there. Unknown keys, wrong types and values that contradict one another are refused by name.

#include <chrono>
#include <cstdint>
#include <expected>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <hotkv/error.hpp>

#include "shared/seqpacket.hpp"  // kSocketPathBytesMax

namespace hotkv {

enum class HugePages {
  off,          // extents are chunks in 4 KiB pages
  if_possible,  // "try": huge pages where the system allows, else as off
  require,      // refuse to start without them
};

enum class LogLevel { trace, debug, info, warn, error };

struct Config {
  // Where clients connect. One of sun_path's 108 bytes is its end, so 107 at most; absolute, so
  // that daemon, clients and tools mean the same file whatever their working directory.
  std::string socket = "/run/hotkv/control.sock";
  // Where hotkvctl and scrapers connect. Apart from `socket` so that its mode can be tighter.
  std::string admin_socket = "/run/hotkv/admin.sock";

  // Provisioned memory of all shards. Unset ("auto"): half of the smaller of the machine's memory
  // and the smallest cgroup limit above the daemon, decided at start by whoever can ask the kernel.
  std::optional<std::uint64_t> max_bytes;
  // Of all shards of one uid. Unset ("off"): an owner may use the whole budget.
  std::optional<std::uint64_t> max_bytes_per_owner;
  // Left to the rest of the machine whatever max_bytes says: provisioning over a limit does not
  // fail, it kills.
  std::uint64_t memory_reserve_bytes = std::uint64_t{256} << 20;

  // Live contexts of one shard. A slot costs about 400 bytes of tables and pages files.
  std::uint32_t session_cap = 4096;
  // An unused context expires after this. Unset ("off"): only need of memory or slots evicts.
  // Half an hour outlasts a user's pause, not a user who has left.
  std::optional<std::chrono::milliseconds> default_ttl = std::chrono::minutes(30);
  // How long a miss can still say why: longer than default_ttl, since whoever returns after a
  // context expired is the one who asks.
  std::chrono::milliseconds tombstone_ttl = std::chrono::hours(1);
  // Ended sessions remembered in one shard, beyond the live ones. 16384 in an hour is 4.5 a second.
  std::uint32_t tombstones = 16384;

  HugePages hugepages = HugePages::if_possible;
  // Tokens of one chunk in new shards. Unset ("auto"): the most that keep a chunk at or under 2
  // MiB.
  std::optional<std::uint32_t> chunk_tokens;
  // Architectures whose KV may be kept. Everything else is refused at attach.
  std::vector<std::string> certified_architectures = {"llama"};

  // Open connections on `socket`: one descriptor and bounded queues each.
  std::uint32_t max_connections = 1024;
  // Shards of all owners: three descriptors each, here and in the service manager's store.
  std::uint32_t max_shards = 64;
  // Shards of one uid, so that one owner cannot use up max_shards. Never more than max_shards.
  std::uint32_t max_shards_per_owner = 16;
  // Clients that can be attached to one shard at a time: one page of pin words each.
  std::uint32_t clients_per_shard = 256;

  LogLevel log_level = LogLevel::info;
};

// What the outside contributes; a test puts its own values here.
struct Environment {
  bool is_root = false;
  std::string xdg_runtime_dir;                                 // empty: not set
  std::string default_config_file = "/etc/hotkv/hotkvd.toml";  // read if it exists
  std::vector<std::string> hotkv_variables;  // names of the variables that begin with HOTKV_
};

// That of this process.
[[nodiscard]] Environment current_environment();

enum class Action { run, supervise, check, show_help, show_version };
// A parent takes it away before it passes its arguments on.
inline constexpr const char* kSuperviseFlag = "--supervise";

struct ParsedCommandLine {
  Action action = Action::run;
  Config config;
  std::string config_file;  // what was read; empty: no file
  std::string text;         // for show_help and show_version: what to print
};

// `arguments` are argv without the program's name. Flags override the file, the file the defaults.
// Without --config, $default_config_file is read if it exists. When the caller is not root and
// XDG_RUNTIME_DIR is set, the default sockets are in its folder hotkv/.
// Errors: configuration_error, whose object is the flag or file:line and key, and whose cause ends
// with the nearest known name where the name is unknown; system_error for an unreadable file.
[[nodiscard]] std::expected<ParsedCommandLine, Error> parse_command_line(
    std::span<const char* const> arguments, const Environment& environment);

// Every key with its value as it would be written in the file, in the file's order.
[[nodiscard]] std::vector<std::pair<std::string, std::string>> describe(const Config& config);

}  // namespace hotkv
