#include "daemon/platform/headroom.hpp"

#include <algorithm>
#include <cerrno>
#include <charconv>
#include <fstream>
#include <limits>
#include <optional>
#include <sstream>
#include <string_view>
#include <utility>
#include <vector>

namespace hotkv::platform {
namespace {

namespace fs = std::filesystem;

constexpr std::uint64_t kUnlimited = std::numeric_limits<std::uint64_t>::max();

// The names of one cgroup version's files.
struct CgroupFiles {
  const char* max;
  const char* high;  // nullptr: this version has none
  const char* usage;
  const char* reclaimable_key;  // in memory.stat, children included
};
constexpr CgroupFiles kVersion1{"memory.limit_in_bytes", nullptr, "memory.usage_in_bytes",
                                "total_inactive_file"};
constexpr CgroupFiles kVersion2{"memory.max", "memory.high", "memory.current", "inactive_file"};

struct CgroupMount {
  const CgroupFiles* files;
  fs::path mount_point;
  fs::path directory;  // of this process's group, at or below the mount point
};

std::unexpected<Error> senseless(const fs::path& path, std::string cause) {
  return std::unexpected(
      Error{ErrorCode::system_error, "read", path.string(), std::move(cause), 0});
}

// nullopt: there is no such file.
std::expected<std::optional<std::string>, Error> read_file(const fs::path& path) {
  std::ifstream file(path);
  if (!file) {
    if (errno == ENOENT) return std::nullopt;
    return std::unexpected(system_error("read", path.string()));
  }
  std::ostringstream text;
  text << file.rdbuf();
  return text.str();
}

std::expected<std::string, Error> read_needed_file(const fs::path& path) {
  auto text = read_file(path);
  if (!text) return std::unexpected(std::move(text.error()));
  if (!text->has_value()) return senseless(path, "no such file");
  return std::move(**text);
}

// A whole number at the start of the text, or "max".
std::optional<std::uint64_t> parse_bytes(std::string_view text) {
  if (text.starts_with("max")) return kUnlimited;
  std::uint64_t value = 0;
  const auto parsed = std::from_chars(text.data(), text.data() + text.size(), value);
  if (parsed.ec != std::errc{}) return std::nullopt;
  return value;
}

// The number behind `key` at the start of a line, as in meminfo and memory.stat.
std::optional<std::uint64_t> find_value(const std::string& text, std::string_view key) {
  std::istringstream lines(text);
  for (std::string line; std::getline(lines, line);) {
    if (!line.starts_with(key)) continue;
    const std::size_t digit = line.find_first_not_of(": \t", key.size());
    if (digit == key.size() || digit == std::string::npos) continue;
    return parse_bytes(std::string_view(line).substr(digit));
  }
  return std::nullopt;
}

bool list_has(const std::string& comma_list, std::string_view word) {
  return ("," + comma_list + ",").find("," + std::string(word) + ",") != std::string::npos;
}

// This process's path in the hierarchy of the given version, from the text of /proc/self/cgroup:
// lines "id:controllers:path"; version 2 has no controllers there.
std::optional<std::string> own_cgroup(const std::string& text, bool is_version1) {
  std::istringstream lines(text);
  for (std::string line; std::getline(lines, line);) {
    const std::size_t first = line.find(':');
    const std::size_t second = first == std::string::npos ? first : line.find(':', first + 1);
    if (second == std::string::npos) continue;
    const std::string controllers = line.substr(first + 1, second - first - 1);
    const bool is_match = is_version1 ? list_has(controllers, "memory") : controllers.empty();
    if (is_match) return line.substr(second + 1);
  }
  return std::nullopt;
}

// The group's directory. In a container the mount may show only a subtree, named by `mount_root`,
// of a hierarchy in which the group's path is still given from the top. A group outside of what is
// mounted has no directory here; what is mounted is then the nearest that can be asked.
fs::path cgroup_directory(const fs::path& mount_point, const std::string& mount_root,
                          const std::string& group) {
  const fs::path relative = fs::path(group).lexically_relative(mount_root);
  if (relative.empty() || relative == "." || *relative.begin() == "..") return mount_point;
  return mount_point / relative;
}

// Lines of /proc/self/mountinfo: id parent device root mount-point options … - type source options.
std::vector<CgroupMount> find_cgroups(const fs::path& root, const std::string& mountinfo,
                                      const std::string& own_cgroups) {
  std::vector<CgroupMount> found;
  std::istringstream lines(mountinfo);
  for (std::string line; std::getline(lines, line);) {
    const std::size_t dash = line.find(" - ");
    if (dash == std::string::npos) continue;
    std::string id, parent, device, mount_root, mount_point, type, source, options;
    std::istringstream(line) >> id >> parent >> device >> mount_root >> mount_point;
    std::istringstream(line.substr(dash + 3)) >> type >> source >> options;
    const bool is_version1 = type == "cgroup" && list_has(options, "memory");
    if (!is_version1 && type != "cgroup2") continue;
    const auto group = own_cgroup(own_cgroups, is_version1);
    if (!group) continue;
    const fs::path mounted_at = root / fs::path(mount_point).relative_path();
    found.push_back({is_version1 ? &kVersion1 : &kVersion2, mounted_at,
                     cgroup_directory(mounted_at, mount_root, *group)});
  }
  return found;
}

std::uint64_t minus(std::uint64_t a, std::uint64_t b) {
  return a > b ? a - b : 0;
}

// kUnlimited where the group sets no limit or the files are not there.
std::expected<std::uint64_t, Error> cgroup_room(const fs::path& directory,
                                                const CgroupFiles& files) {
  std::uint64_t limit = kUnlimited;
  for (const char* name : {files.max, files.high}) {
    if (name == nullptr) continue;
    auto text = read_file(directory / name);
    if (!text) return std::unexpected(std::move(text.error()));
    if (!text->has_value()) continue;
    const auto value = parse_bytes(**text);
    if (!value) return senseless(directory / name, "not a number of bytes");
    limit = std::min(limit, *value);
  }
  if (limit == kUnlimited) return kUnlimited;

  auto usage_text = read_needed_file(directory / files.usage);
  if (!usage_text) return std::unexpected(std::move(usage_text.error()));
  const auto usage = parse_bytes(*usage_text);
  if (!usage) return senseless(directory / files.usage, "not a number of bytes");
  auto statistics = read_file(directory / "memory.stat");
  if (!statistics) return std::unexpected(std::move(statistics.error()));
  const std::uint64_t reclaimable =
      find_value(statistics->value_or(""), files.reclaimable_key).value_or(0);
  return minus(limit, minus(*usage, reclaimable));
}

std::expected<std::uint64_t, Error> machine_room(const fs::path& meminfo) {
  auto text = read_needed_file(meminfo);
  if (!text) return std::unexpected(std::move(text.error()));
  const auto available_kib = find_value(*text, "MemAvailable");
  if (!available_kib) return senseless(meminfo, "no MemAvailable");
  return *available_kib * 1024;
}

}  // namespace

std::expected<MemoryRoom, Error> Headroom::room() const {
  const fs::path proc = options_.root / "proc";
  auto machine = machine_room(proc / "meminfo");
  if (!machine) return std::unexpected(std::move(machine.error()));
  MemoryRoom least{minus(*machine, options_.machine_reserve_bytes), "MemAvailable"};

  auto mountinfo = read_file(proc / "self/mountinfo");
  if (!mountinfo) return std::unexpected(std::move(mountinfo.error()));
  auto own_cgroups = read_file(proc / "self/cgroup");
  if (!own_cgroups) return std::unexpected(std::move(own_cgroups.error()));
  for (const CgroupMount& mount :
       find_cgroups(options_.root, mountinfo->value_or(""), own_cgroups->value_or(""))) {
    for (fs::path directory = mount.directory;; directory = directory.parent_path()) {
      auto group = cgroup_room(directory, *mount.files);
      if (!group) return std::unexpected(std::move(group.error()));
      const std::uint64_t available =
          *group == kUnlimited ? kUnlimited : minus(*group, options_.cgroup_reserve_bytes);
      if (available < least.available_bytes) least = {available, directory.string()};
      if (directory == mount.mount_point || !directory.has_relative_path()) break;
    }
  }
  return least;
}

}  // namespace hotkv::platform
