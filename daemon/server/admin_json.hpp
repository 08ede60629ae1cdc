#pragma once
// What the admin pages show, as JSON. Names are the words of the project; whatever a client chose
// (session ids, model ids) is escaped to ASCII, so that no choice of bytes can break a page.

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include <hotkv/error.hpp>
#include <hotkv/types.hpp>

#include "daemon/core/core.hpp"
#include "daemon/server/counters.hpp"

namespace hotkv::server {

// What only the daemon's composition knows of itself.
struct DaemonFacts {
  std::string version;
  std::uint32_t pid = 0;
  std::uint64_t uptime_ms = 0;
  std::uint64_t longest_stall_ms = 0;  // of the one thread, as seen by a timer of one second
  std::uint64_t log_lines_lost = 0;
  std::string restart;               // would a restart keep all shards: "keeps", "cold", "unknown"
  std::uint32_t adopted_shards = 0;  // taken over at the start
  std::uint32_t refused_shards = 0;  // that could not be
};

[[nodiscard]] std::string status_json(const core::Status& status, const ServerCounters& counters,
                                      const DaemonFacts& facts);
// The first `limit` of them, and how many there are.
[[nodiscard]] std::string contexts_json(const std::vector<core::ContextInfo>& contexts,
                                        std::size_t limit);
[[nodiscard]] std::string why_json(const SessionId& session,
                                   const std::vector<core::Explanation>& explanations);
[[nodiscard]] std::string verify_json(const std::optional<std::string>& fault);
[[nodiscard]] std::string health_json();
[[nodiscard]] std::string error_json(const Error& error);

}  // namespace hotkv::server
