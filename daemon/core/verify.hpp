#pragma once
// Walks a shard whole and names the first invariant that does not hold.

#include <optional>
#include <string>
#include <vector>

#include <hotkv/types.hpp>

#include "daemon/core/shard.hpp"

namespace hotkv::core {

// `booked`: chunks that waiting grants have taken. Only between operations. What clients can write
// (lengths, pins, touches) is no invariant of ours and is not looked at.
[[nodiscard]] std::optional<std::string> verify_shard(const Shard& shard,
                                                      const std::vector<ChunkIndex>& booked);

}  // namespace hotkv::core
