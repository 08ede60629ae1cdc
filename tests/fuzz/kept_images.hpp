#pragma once
// Files of a shard as real operations left them, whole or cut off between two stores.

#include <cstddef>
#include <cstdint>
#include <map>
#include <set>
#include <vector>

#include "daemon/core/shard_tables.hpp"

namespace hotkv::fuzz {

// What a context is in an undamaged image.
struct Known {
  SessionId session;
  SlotIndex slot;
  HeadWord head;
  TokenCount length;
  std::set<std::uint32_t> chunks;
};

// A copy of a shard's files, and what of them must survive.
struct Image {
  std::vector<std::byte> tables, lengths, pages;
  std::map<std::uint32_t, std::vector<std::byte>> extents;
  std::vector<Known> whole;  // contexts that no operation was at work on
};

// What an image fills the chunks of a context with.
[[nodiscard]] constexpr std::byte fill_of(std::uint32_t session_number, std::uint64_t epoch) {
  return static_cast<std::byte>(0x10 + session_number + 0x10 * epoch);
}

// All chunks of a chain, whatever its words say; each once.
[[nodiscard]] std::set<std::uint32_t> chunks_of(const core::ShardTables& tables, Tip tip);

// At most 255, all of one plan; the first one is whole.
[[nodiscard]] const std::vector<Image>& images();
[[nodiscard]] const core::ShardPlan& plan_of_images();

}  // namespace hotkv::fuzz
