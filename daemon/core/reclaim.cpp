#include "daemon/core/reclaim.hpp"

#include <algorithm>
#include <limits>
#include <map>

namespace hotkv::core {
namespace {

// Candidates looked at in one other shard for one append: bounds the work of a turn.
constexpr std::size_t kCandidatesPerShardMax = 1024;

std::int64_t extent_bytes(const Shard& shard) {
  return static_cast<std::int64_t>(shard.tables.geometry().extent_bytes);
}

std::uint64_t extents_for(const Shard& shard, std::uint64_t chunks) {
  const std::uint64_t per_extent = shard.tables.geometry().chunks_per_extent;
  return (chunks + per_extent - 1) / per_extent;
}

// Follows, without changing anything, which extents of other shards would become idle.
class Rehearsal {
 public:
  // Bytes of extents that become idle when the context goes, on top of those before it.
  std::int64_t end_of(const Shard& shard, SlotIndex slot) {
    std::int64_t bytes = 0;
    for (const ChunkIndex chunk : shard.chunks.exclusive_run(shard.head(slot).tip)) {
      const ExtentIndex extent = shard.tables.geometry().extent_of(chunk);
      const auto [place, first] = used_.try_emplace({shard.id, extent}, 0);
      if (first) place->second = shard.chunks.used_in(extent);
      if (--place->second == 0) bytes += extent_bytes(shard);
    }
    return bytes;
  }

 private:
  std::map<std::pair<ShardId, ExtentIndex>, std::uint32_t> used_;
};

}  // namespace

Supply Reclaim::supply_for(const Shard& shard) const {
  Supply supply;
  supply.free_chunks = shard.chunks.free_count();
  supply.absent_extents = shard.chunks.absent_count();
  supply.room = static_cast<std::int64_t>(limits_.max_bytes) - shards_.provisioned_bytes();
  supply.owner_room = limits_.max_bytes_per_owner == 0
                          ? std::numeric_limits<std::int64_t>::max() / 2
                          : static_cast<std::int64_t>(limits_.max_bytes_per_owner) -
                                shards_.provisioned_bytes_of(shard.key.owner_uid);
  for (const auto& [id, other] : shards_.map()) {
    if (id == shard.id) continue;
    const auto bytes =
        static_cast<std::int64_t>(other->chunks.idle_extents().size()) * extent_bytes(*other);
    supply.idle += bytes;
    if (other->key.owner_uid == shard.key.owner_uid) supply.owner_idle += bytes;
  }
  return supply;
}

bool Reclaim::suffices(const Shard& shard, std::uint64_t chunks, const Supply& supply) {
  if (supply.free_chunks >= chunks) return true;
  const std::uint64_t extents = extents_for(shard, chunks - supply.free_chunks);
  const auto bytes = static_cast<std::int64_t>(extents) * extent_bytes(shard);
  return extents <= supply.absent_extents && bytes <= supply.room + supply.idle &&
         bytes <= supply.owner_room + supply.owner_idle;
}

std::vector<Shard*> Reclaim::others_in_order(const Shard& shard, bool owner_first) const {
  const auto owners = shards_.owners();
  const auto share =
      static_cast<std::int64_t>(limits_.max_bytes / std::max<std::size_t>(owners.size(), 1));
  std::map<std::uint32_t, std::int64_t> excess;
  for (const std::uint32_t owner : owners) {
    excess[owner] = shards_.provisioned_bytes_of(owner) - share;
  }
  std::vector<Shard*> others;
  for (const auto& [id, other] : shards_.map()) {
    if (id != shard.id) others.push_back(other.get());
  }
  std::ranges::stable_sort(others, [&](const Shard* a, const Shard* b) {
    const bool a_first = owner_first && a->key.owner_uid == shard.key.owner_uid;
    const bool b_first = owner_first && b->key.owner_uid == shard.key.owner_uid;
    if (a_first != b_first) return a_first;
    if (excess[a->key.owner_uid] != excess[b->key.owner_uid]) {
      return excess[a->key.owner_uid] > excess[b->key.owner_uid];
    }
    return a->key.owner_uid < b->key.owner_uid;
  });
  return others;
}

std::optional<std::vector<Victim>> Reclaim::choose_victims(Shard& shard, std::uint64_t chunks,
                                                           SlotIndex keep,
                                                           std::uint64_t now_ms) const {
  std::vector<Victim> victims;
  Supply supply = supply_for(shard);
  const PinSet pins = shard.pages.scan_pins();
  shard.walk_least_recent(now_ms, [&](SlotIndex slot) {
    if (slot == keep || pins.contains(slot, shard.head(slot).generation)) return true;
    const std::size_t gain = shard.chunks.exclusive_run(shard.head(slot).tip).size();
    if (gain == 0) return true;
    supply.free_chunks += gain;
    victims.push_back({shard.id, slot});
    return !suffices(shard, chunks, supply);
  });
  if (suffices(shard, chunks, supply)) return victims;

  // Contexts of other shards, owner by owner; within one owner the oldest first over its shards.
  const auto missing = static_cast<std::int64_t>(extents_for(
                           shard, chunks - std::min(chunks, supply.free_chunks))) *
                       extent_bytes(shard);
  const bool owner_binds = missing > supply.owner_room + supply.owner_idle;
  const std::vector<Shard*> others = others_in_order(shard, owner_binds);
  Rehearsal rehearsal;
  for (std::size_t begin = 0; begin < others.size();) {
    const std::uint32_t owner = others[begin]->key.owner_uid;
    std::vector<std::pair<std::uint64_t, Victim>> candidates;
    for (; begin < others.size() && others[begin]->key.owner_uid == owner; ++begin) {
      Shard& other = *others[begin];
      const PinSet other_pins = other.pages.scan_pins();
      std::size_t taken = 0;
      other.walk_least_recent(now_ms, [&](SlotIndex slot) {
        if (other_pins.contains(slot, other.head(slot).generation) ||
            other.chunks.exclusive_run(other.head(slot).tip).empty()) {
          return true;
        }
        candidates.push_back({other.recency.used_ms(slot), {other.id, slot}});
        return ++taken < kCandidatesPerShardMax;
      });
    }
    std::ranges::stable_sort(candidates, {}, [](const auto& c) { return c.first; });
    for (const auto& [used_ms, victim] : candidates) {
      const std::int64_t bytes = rehearsal.end_of(shards_.at(victim.shard), victim.slot);
      supply.idle += bytes;
      if (owner == shard.key.owner_uid) supply.owner_idle += bytes;
      victims.push_back(victim);
      if (suffices(shard, chunks, supply)) return victims;
    }
  }
  return std::nullopt;
}

std::optional<SlotIndex> Reclaim::choose_one(Shard& shard, std::uint64_t now_ms) const {
  const PinSet pins = shard.pages.scan_pins();
  std::optional<SlotIndex> chosen;
  shard.walk_least_recent(now_ms, [&](SlotIndex slot) {
    if (!pins.contains(slot, shard.head(slot).generation)) chosen = slot;
    return !chosen;
  });
  return chosen;
}

std::vector<std::pair<ShardId, ExtentIndex>> Reclaim::begin_departures(
    const Shard& shard, std::uint64_t missing_chunks) const {
  const Supply supply = supply_for(shard);
  const auto bytes =
      static_cast<std::int64_t>(extents_for(shard, missing_chunks)) * extent_bytes(shard);
  std::int64_t owner_short = bytes - supply.owner_room;
  std::int64_t total_short = bytes - supply.room;
  std::vector<std::pair<ShardId, ExtentIndex>> departures;
  for (Shard* other : others_in_order(shard, owner_short > 0)) {
    const bool same_owner = other->key.owner_uid == shard.key.owner_uid;
    while (!other->chunks.idle_extents().empty() &&
           (total_short > 0 || (same_owner && owner_short > 0))) {
      // The highest one: what stays is dense at the low end.
      const ExtentIndex extent{*other->chunks.idle_extents().rbegin()};
      other->chunks.begin_departure(extent);
      departures.emplace_back(other->id, extent);
      total_short -= extent_bytes(*other);
      if (same_owner) owner_short -= extent_bytes(*other);
    }
  }
  return departures;
}

}  // namespace hotkv::core
