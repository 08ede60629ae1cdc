#pragma once
// How much memory may still be taken before the kernel kills somebody.

#include <cstdint>
#include <expected>
#include <filesystem>
#include <string>
#include <utility>

#include <hotkv/error.hpp>

namespace hotkv::platform {

struct HeadroomOptions {
  // Where /proc and the cgroup file systems are looked up; tests put files of their own there.
  std::filesystem::path root = "/";
  // Of the machine's memory, left to everybody else.
  std::uint64_t machine_reserve_bytes = std::uint64_t{256} << 20;
  // Of each cgroup, left to the daemon's own heap and page tables, and to the kernel's habit of
  // charging 64 pages ahead on every processor: 256 KiB each, so 16 MiB cover 32 and the heap.
  std::uint64_t cgroup_reserve_bytes = std::uint64_t{16} << 20;
};

struct MemoryRoom {
  std::uint64_t available_bytes = 0;
  std::string limit;  // what sets it: "MemAvailable", or a cgroup's directory
};

// The least of
//   - MemAvailable of /proc/meminfo, less the machine's reserve;
//   - for this process's cgroup and every one above it, limit - (usage - inactive file cache), less
//     the cgroup's reserve. Version 2: min(memory.max, memory.high); over the latter the kernel
//     does not kill but slows every thread of the group down, the daemon's loop included. Version
//     1: memory.limit_in_bytes. Inactive file cache is the part that the kernel drops before it
//     kills; active cache is not counted on. The memory files' own pages are not in it.
// An absent file is no limit; a file that cannot be understood is an error, as a guess may kill.
class Headroom {
 public:
  explicit Headroom(HeadroomOptions options) : options_(std::move(options)) {}

  // Reads everything anew: limits change under a running process, and it can be moved.
  // Errors: system_error (a file unreadable or senseless).
  [[nodiscard]] std::expected<MemoryRoom, Error> room() const;

 private:
  HeadroomOptions options_;
};

}  // namespace hotkv::platform
