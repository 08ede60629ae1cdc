#pragma once
// From the configuration and the machine to the bounds that the core keeps.

#include <cstdint>
#include <expected>
#include <filesystem>
#include <string>

#include <hotkv/error.hpp>

#include "daemon/config.hpp"
#include "daemon/core/limits.hpp"

namespace hotkv {

// What of the machine decides defaults.
struct MachineFacts {
  std::uint64_t memory_bytes = 0;        // of the machine
  std::uint64_t cgroup_limit_bytes = 0;  // the least of those above this process; 0 = none
  std::string shmem_huge_pages{};        // the kernel's mode: "never", "advise"; "" = not known
};

// From /proc and /sys under `root`; a file that is not there is a fact that is not known.
[[nodiscard]] MachineFacts read_machine_facts(const std::filesystem::path& root = "/");

// max_bytes not set: half of the smaller of the machine's memory and the cgroup's limit, so that
// what is not the cache (workers, page cache) has the other half. Huge pages: where wanted and the
// kernel's mode lets a mapping have them.
// Errors: configuration_error naming the key, where huge pages are required and cannot be had,
// max_bytes is not set and the machine's memory is not known, max_bytes is more than machine and
// cgroup have, the reserve is all of it, or one owner would have more than all together.
[[nodiscard]] std::expected<core::Limits, Error> effective_limits(const Config& config,
                                                                  const MachineFacts& facts);

}  // namespace hotkv
