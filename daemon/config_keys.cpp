#include "daemon/config_keys.hpp"

#include <algorithm>
#include <array>
#include <charconv>
#include <limits>
#include <system_error>

#include <hotkv/types.hpp>

#include "daemon/human_units.hpp"

namespace hotkv {
namespace {

using Result = std::expected<void, std::string>;

// The index of a context is 32 bits, but its tables are mapped by every client: a million slots are
// about 400 MB of address space.
constexpr std::uint32_t kSessionCapMax = 1u << 20;
constexpr std::uint32_t kTombstonesMax = 1u << 24;
constexpr std::uint32_t kChunkTokensMax = 1u << 16;
// Each takes a descriptor; the kernel's default for fs.nr_open is 1,048,576.
constexpr std::uint32_t kConnectionsMax = 1u << 16;
constexpr std::uint32_t kShardsMax = 1024;
// Every end of a generation scans the used pin words of all of them.
constexpr std::uint32_t kClientsPerShardMax = 4096;
// One page: less cannot hold a chunk.
constexpr std::uint64_t kBytesMin = 4096;

Result set_count(std::uint32_t& field, std::string_view text, std::uint32_t least,
                 std::uint32_t most) {
  std::uint32_t number = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number);
  if (error != std::errc{} || end != text.data() + text.size() || number < least || number > most) {
    return std::unexpected("\"" + escape_bytes(text) + "\" is not a whole number from " +
                           std::to_string(least) + " to " + std::to_string(most));
  }
  field = number;
  return {};
}

Result set_size(std::uint64_t& field, std::string_view text, std::uint64_t least) {
  const auto size_bytes = parse_size_bytes(text);
  if (!size_bytes) {
    return std::unexpected(size_bytes.error().object + ": " + size_bytes.error().cause);
  }
  if (*size_bytes < least) {
    return std::unexpected("\"" + std::string(text) + "\" is less than " +
                           format_size_bytes(least) + ", the least that makes sense");
  }
  field = *size_bytes;
  return {};
}

// Text that stands for "not set", or a size.
Result set_optional_size(std::optional<std::uint64_t>& field, std::string_view text,
                         std::string_view unset) {
  if (text == unset) {
    field.reset();
    return {};
  }
  std::uint64_t size_bytes = 0;
  Result result = set_size(size_bytes, text, kBytesMin);
  if (result) field = size_bytes;
  return result;
}

Result set_duration(std::chrono::milliseconds& field, std::string_view text) {
  const auto duration = parse_duration(text);
  if (!duration) return std::unexpected(duration.error().object + ": " + duration.error().cause);
  if (duration->count() == 0) {
    return std::unexpected("\"" + std::string(text) + "\" is no time at all");
  }
  field = *duration;
  return {};
}

Result set_socket_path(std::string& field, std::string_view text) {
  const std::string quoted = "\"" + escape_bytes(text) + "\"";
  if (text.find('\0') != std::string_view::npos) {
    return std::unexpected(quoted + " contains a zero byte");
  }
  if (!text.starts_with('/')) {
    return std::unexpected(quoted + " is not an absolute path");
  }
  if (text.size() > kSocketPathBytesMax) {
    return std::unexpected(quoted + " has " + std::to_string(text.size()) +
                           " bytes; a socket path has at most " +
                           std::to_string(kSocketPathBytesMax));
  }
  field = text;
  return {};
}

bool is_architecture_character(char c) {
  return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '_' ||
         c == '-' || c == '.';
}

Result set_architectures(std::vector<std::string>& field, std::string_view text) {
  std::vector<std::string> names;
  std::size_t begin = 0;
  while (begin <= text.size()) {
    const std::size_t end = std::min(text.find(',', begin), text.size());
    const std::string name(text.substr(begin, end - begin));
    begin = end + 1;
    if (name.empty() || !std::ranges::all_of(name, is_architecture_character)) {
      return std::unexpected("\"" + escape_bytes(text) + "\": \"" + escape_bytes(name) +
                             "\" is no name of an architecture (letters, digits, . _ -)");
    }
    if (std::ranges::find(names, name) != names.end()) {
      return std::unexpected("\"" + std::string(text) + "\" names " + name + " twice");
    }
    names.push_back(name);
  }
  field = std::move(names);
  return {};
}

template <class Enum>
struct Word {
  std::string_view text;
  Enum value;
};

constexpr std::array kHugePagesWords = {Word{"off", HugePages::off},
                                        Word{"try", HugePages::if_possible},
                                        Word{"require", HugePages::require}};
constexpr std::array kLogLevelWords = {
    Word{"trace", LogLevel::trace}, Word{"debug", LogLevel::debug}, Word{"info", LogLevel::info},
    Word{"warn", LogLevel::warn}, Word{"error", LogLevel::error}};

template <class Enum, std::size_t kCount>
Result set_word(Enum& field, std::string_view text, const std::array<Word<Enum>, kCount>& words) {
  std::string known;
  for (const auto& word : words) {
    if (word.text == text) {
      field = word.value;
      return {};
    }
    known += (known.empty() ? "" : ", ") + std::string(word.text);
  }
  return std::unexpected("\"" + escape_bytes(text) + "\" is none of " + known);
}

template <class Enum, std::size_t kCount>
std::string show_word(Enum value, const std::array<Word<Enum>, kCount>& words) {
  const auto word = std::ranges::find(words, value, &Word<Enum>::value);
  return word == words.end() ? "?" : std::string(word->text);
}

std::string join(const std::vector<std::string>& names) {
  std::string text;
  for (const std::string& name : names) text += (text.empty() ? "" : ",") + name;
  return text;
}

// A key whose value is a count: the field and its bounds are all it needs.
template <std::uint32_t Config::*kField, std::uint32_t kLeast, std::uint32_t kMost>
constexpr ConfigKey count_key(std::string_view flag, std::string_view name,
                              std::string_view meaning) {
  return {
      .flag = flag,
      .name = name,
      .form = ValueForm::count,
      .hint = "COUNT",
      .meaning = meaning,
      .set = [](Config& config,
                std::string_view text) { return set_count(config.*kField, text, kLeast, kMost); },
      .show = [](const Config& config) { return std::to_string(config.*kField); }};
}

template <std::string Config::*kField>
constexpr ConfigKey socket_key(std::string_view flag, std::string_view name,
                               std::string_view meaning) {
  return {.flag = flag,
          .name = name,
          .form = ValueForm::text,
          .hint = "PATH",
          .meaning = meaning,
          .set = [](Config& config,
                    std::string_view text) { return set_socket_path(config.*kField, text); },
          .show = [](const Config& config) { return config.*kField; }};
}

constexpr ConfigKey kKeys[] = {
    socket_key<&Config::socket>("socket", "socket", "where clients connect"),
    socket_key<&Config::admin_socket>("admin-socket", "admin_socket",
                                      "where hotkvctl and scrapers connect"),
    {.flag = "max-bytes",
     .name = "max_bytes",
     .form = ValueForm::size,
     .hint = "SIZE|auto",
     .meaning = "memory of all shards; auto: half of the machine's or the cgroup's limit",
     .set = [](Config& c,
               std::string_view text) { return set_optional_size(c.max_bytes, text, "auto"); },
     .show =
         [](const Config& c) {
           return c.max_bytes ? format_size_bytes(*c.max_bytes) : std::string("auto");
         }},
    {.flag = "max-bytes-per-owner",
     .name = "max_bytes_per_owner",
     .form = ValueForm::size,
     .hint = "SIZE|off",
     .meaning = "memory of all shards of one uid; off: no bound but max-bytes",
     .set =
         [](Config& c, std::string_view text) {
           return set_optional_size(c.max_bytes_per_owner, text, "off");
         },
     .show =
         [](const Config& c) {
           return c.max_bytes_per_owner ? format_size_bytes(*c.max_bytes_per_owner)
                                        : std::string("off");
         }},
    {.flag = "memory-reserve",
     .name = "memory_reserve",
     .form = ValueForm::size,
     .hint = "SIZE",
     .meaning = "memory left to the rest of the machine",
     .set = [](Config& c,
               std::string_view text) { return set_size(c.memory_reserve_bytes, text, 0); },
     .show = [](const Config& c) { return format_size_bytes(c.memory_reserve_bytes); }},
    count_key<&Config::session_cap, 1, kSessionCapMax>("session-cap", "session_cap",
                                                       "live contexts of one shard"),
    {.flag = "default-ttl",
     .name = "default_ttl",
     .form = ValueForm::text,
     .hint = "DURATION|off",
     .meaning = "an unused context expires after this",
     .set = [](Config& c, std::string_view text) -> Result {
       if (text == "off") {
         c.default_ttl.reset();
         return {};
       }
       std::chrono::milliseconds ttl{};
       Result result = set_duration(ttl, text);
       if (result) c.default_ttl = ttl;
       return result;
     },
     .show =
         [](const Config& c) {
           return c.default_ttl ? format_duration(*c.default_ttl) : std::string("off");
         }},
    {.flag = "tombstone-ttl",
     .name = "tombstone_ttl",
     .form = ValueForm::text,
     .hint = "DURATION",
     .meaning = "how long the fate of an ended session is remembered",
     .set = [](Config& c, std::string_view text) { return set_duration(c.tombstone_ttl, text); },
     .show = [](const Config& c) { return format_duration(c.tombstone_ttl); }},
    count_key<&Config::tombstones, 1, kTombstonesMax>("tombstones", "tombstones",
                                                      "ended sessions remembered in one shard"),
    {.flag = "hugepages",
     .name = "hugepages",
     .form = ValueForm::text,
     .hint = "off|try|require",
     .meaning = "back new shards with huge pages",
     .set = [](Config& c,
               std::string_view text) { return set_word(c.hugepages, text, kHugePagesWords); },
     .show = [](const Config& c) { return show_word(c.hugepages, kHugePagesWords); }},
    {.flag = "chunk-tokens",
     .name = "chunk_tokens",
     .form = ValueForm::text_or_count,
     .hint = "COUNT|auto",
     .meaning = "tokens of one chunk in new shards; auto: as many as fit 2 MiB",
     .set = [](Config& c, std::string_view text) -> Result {
       if (text == "auto") {
         c.chunk_tokens.reset();
         return {};
       }
       std::uint32_t tokens = 0;
       Result result = set_count(tokens, text, 1, kChunkTokensMax);
       if (result) c.chunk_tokens = tokens;
       return result;
     },
     .show =
         [](const Config& c) {
           return c.chunk_tokens ? std::to_string(*c.chunk_tokens) : std::string("auto");
         }},
    {.flag = "certified-architectures",
     .name = "certified_architectures",
     .form = ValueForm::words,
     .hint = "NAME,...",
     .meaning = "architectures whose KV may be kept",
     .set =
         [](Config& c, std::string_view text) {
           return set_architectures(c.certified_architectures, text);
         },
     .show = [](const Config& c) { return join(c.certified_architectures); }},
    count_key<&Config::max_connections, 1, kConnectionsMax>("max-connections", "max_connections",
                                                            "open connections of clients"),
    count_key<&Config::max_shards, 1, kShardsMax>("max-shards", "max_shards",
                                                  "shards of all owners"),
    count_key<&Config::max_shards_per_owner, 1, kShardsMax>(
        "max-shards-per-owner", "max_shards_per_owner", "shards of one uid"),
    count_key<&Config::clients_per_shard, 1, kClientsPerShardMax>(
        "clients-per-shard", "clients_per_shard", "clients attached to one shard at a time"),
    {.flag = "log-level",
     .name = "log_level",
     .form = ValueForm::text,
     .hint = "trace|debug|info|warn|error",
     .meaning = "the least severe line that is logged",
     .set = [](Config& c,
               std::string_view text) { return set_word(c.log_level, text, kLogLevelWords); },
     .show = [](const Config& c) { return show_word(c.log_level, kLogLevelWords); }},
};

// The restricted Damerau-Levenshtein distance: three rows of the usual table are enough.
std::size_t edit_distance(std::string_view a, std::string_view b) {
  std::vector<std::size_t> before(b.size() + 1), previous(b.size() + 1), row(b.size() + 1);
  for (std::size_t j = 0; j <= b.size(); ++j) row[j] = j;
  for (std::size_t i = 1; i <= a.size(); ++i) {
    before.swap(previous);
    previous.swap(row);
    row[0] = i;
    for (std::size_t j = 1; j <= b.size(); ++j) {
      const std::size_t replaced = previous[j - 1] + (a[i - 1] == b[j - 1] ? 0 : 1);
      row[j] = std::min({previous[j] + 1, row[j - 1] + 1, replaced});
      const bool swapped = i > 1 && j > 1 && a[i - 1] == b[j - 2] && a[i - 2] == b[j - 1];
      if (swapped) row[j] = std::min(row[j], before[j - 2] + 1);
    }
  }
  return row[b.size()];
}

}  // namespace

std::span<const ConfigKey> config_keys() {
  return kKeys;
}

std::string_view nearest_name(std::string_view unknown, std::span<const std::string_view> known) {
  // A name from outside can be long; its first letters are enough to find what it was meant to be.
  constexpr std::size_t kComparedBytesMax = 64;
  const std::string_view compared = unknown.substr(0, kComparedBytesMax);
  const auto nearest = std::ranges::min_element(
      known, {}, [&](std::string_view name) { return edit_distance(compared, name); });
  return nearest == known.end() ? std::string_view() : *nearest;
}

}  // namespace hotkv
