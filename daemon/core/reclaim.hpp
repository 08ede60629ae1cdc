#pragma once
// Where a shard's next chunks can come from, and who has to go for them.

#include <cstdint>
#include <functional>
#include <optional>
#include <span>
#include <utility>
#include <vector>

#include "daemon/core/limits.hpp"
#include "daemon/core/shards.hpp"

namespace hotkv::core {

// What a shard could get without evicting anybody. Bytes are signed: a budget that was lowered can
// be overdrawn, and then the first memory that frees pays for that.
struct Supply {
  std::uint64_t free_chunks = 0;     // here, with memory
  std::uint64_t absent_extents = 0;  // here, of the arena's limit
  std::int64_t room = 0;             // below the budget
  std::int64_t owner_room = 0;       // below the owner's bound
  std::int64_t idle = 0;             // bytes of all-free extents of other shards
  std::int64_t owner_idle = 0;       // those of the same owner
};

// A context to evict.
struct Victim {
  ShardId shard;
  SlotIndex slot;
};

class Reclaim {
 public:
  Reclaim(const Limits& limits, Shards& shards) : limits_(limits), shards_(shards) {}

  [[nodiscard]] Supply supply_for(const Shard& shard) const;
  // Could the shard take `chunks` chunks out of this supply?
  [[nodiscard]] static bool suffices(const Shard& shard, std::uint64_t chunks,
                                     const Supply& supply);
  // The least recently used unpinned contexts whose end lets the shard get `chunks` chunks: first
  // its own, then of the owner most above its share. All or nothing: nobody is evicted in vain.
  // `keep` is never among them. Nothing: everything that is left is pinned.
  [[nodiscard]] std::optional<std::vector<Victim>> choose_victims(Shard& shard,
                                                                  std::uint64_t chunks,
                                                                  SlotIndex keep,
                                                                  std::uint64_t now_ms);
  // Ends contexts of some shards that have chunks and that nobody pins, least recently used first,
  // as long as it is wanted. False if there was none to end.
  bool end_oldest_while(const std::function<bool()>& wanted, std::span<Shard* const> shards,
                        std::uint64_t now_ms);
  // The least recently used unpinned context of the shard.
  [[nodiscard]] std::optional<SlotIndex> choose_one(Shard& shard, std::uint64_t now_ms);

  // Takes idle extents of other shards out of use until `chunks` more chunks fit into the budget.
  // Only if suffices().
  [[nodiscard]] std::vector<std::pair<ShardId, ExtentIndex>> begin_departures(
      const Shard& shard, std::uint64_t missing_chunks);

 private:
  // Other shards in the order in which they give: of the same owner where its own bound binds, then
  // owners by how far they are above an equal share of the budget.
  [[nodiscard]] std::vector<Shard*> others_in_order(const Shard& shard, bool owner_first);
  // Adds own contexts to `victims` and `supply` until it suffices.
  void choose_own(Shard& shard, std::uint64_t chunks, SlotIndex keep, std::uint64_t now_ms,
                  Supply& supply, std::vector<Victim>& victims);
  // Unpinned contexts with memory of some shards, least recently used first.
  [[nodiscard]] static std::vector<Victim> candidates_of(std::span<Shard* const> shards,
                                                         std::uint64_t now_ms);

  const Limits& limits_;
  Shards& shards_;
};

}  // namespace hotkv::core
