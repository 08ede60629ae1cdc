#pragma once
// What a soak came to, and what of it is wrong.

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "client/tools/bench/soak_worker.hpp"

namespace hotkv::bench {

struct SoakReport {
  SoakTotals totals;
  double seconds = 0;
  std::uint64_t workers_full_ms = 0;  // in which a request was due and no worker had room
  std::uint64_t budget_bytes = 0;
  std::uint64_t largest_provisioned_bytes = 0;  // by the daemon's account, ten times a second
  std::uint64_t contexts_ended_lru = 0;
  std::uint64_t contexts_ended_ttl = 0;
  // Of the daemon: memory of its own (without the arenas) and descriptors, after a quarter of the
  // time and at the end, when no worker is there any more.
  std::uint64_t own_bytes_early = 0, own_bytes_end = 0;
  std::optional<std::uint64_t> descriptors_before, descriptors_end;  // only root can see them
  std::uint64_t pinned_end = 0;  // contexts that are pinned at the end
  bool is_sound = false;         // /verify, at the end

  // What is wrong, in words; empty where nothing is.
  [[nodiscard]] std::vector<std::string> faults() const;
};

// For people, and for programs.
[[nodiscard]] std::string text_of(const SoakReport& report);
[[nodiscard]] std::string json_of(const SoakReport& report);

}  // namespace hotkv::bench
