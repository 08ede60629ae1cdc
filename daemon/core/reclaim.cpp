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
  explicit Rehearsal(const Shards& shards) : shards_(shards) {}

  // Bytes of extents that become idle when the context goes, on top of those before it.
  std::int64_t end_of(const Victim& victim) {
    std::int64_t bytes = 0;
    for (const Place& place : places_of(victim)) {
      const Shard& shard = shards_.at(place.first);
      const auto [used, first] = used_.try_emplace(place, 0);
      if (first) used->second = shard.chunks.used_in(place.second);
      if (--used->second == 0) bytes += extent_bytes(shard);
    }
    victims_.push_back(victim);
    return bytes;
  }
  // Those whose end made an extent idle, alone or with others: the rest would end in vain.
  [[nodiscard]] std::vector<Victim> needed() const {
    std::vector<Victim> needed;
    for (const Victim& victim : victims_) {
      const auto places = places_of(victim);
      const bool counts =
          std::ranges::any_of(places, [&](const Place& place) { return used_.at(place) == 0; });
      if (counts) needed.push_back(victim);
    }
    return needed;
  }

 private:
  using Place = std::pair<ShardId, ExtentIndex>;
  [[nodiscard]] std::vector<Place> places_of(const Victim& victim) const {
    const Shard& shard = shards_.at(victim.shard);
    std::vector<Place> places;
    for (const ChunkIndex chunk : shard.chunks.exclusive_run(shard.head(victim.slot).tip)) {
      places.emplace_back(shard.id, shard.tables.geometry().extent_of(chunk));
    }
    return places;
  }

  const Shards& shards_;
  std::map<Place, std::uint32_t> used_;
  std::vector<Victim> victims_;
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

std::vector<Shard*> Reclaim::others_in_order(const Shard& shard, bool owner_first) {
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

void Reclaim::choose_own(Shard& shard, std::uint64_t chunks, SlotIndex keep, std::uint64_t now_ms,
                         Supply& supply, std::vector<Victim>& victims) {
  const PinSet pins = shard.pages.scan_pins();
  shard.walk_least_recent(now_ms, [&](SlotIndex slot) {
    if (slot == keep || pins.contains(slot, shard.head(slot).generation)) return true;
    const std::size_t gain = shard.chunks.exclusive_run(shard.head(slot).tip).size();
    if (gain == 0) return true;
    supply.free_chunks += gain;
    victims.push_back({shard.id, slot});
    return !suffices(shard, chunks, supply);
  });
}

std::vector<Victim> Reclaim::candidates_of(std::span<Shard* const> shards, std::uint64_t now_ms) {
  std::vector<std::pair<std::uint64_t, Victim>> by_use;
  for (Shard* shard : shards) {
    const PinSet pins = shard->pages.scan_pins();
    std::size_t taken = 0;
    shard->walk_least_recent(now_ms, [&](SlotIndex slot) {
      if (pins.contains(slot, shard->head(slot).generation) ||
          shard->chunks.exclusive_run(shard->head(slot).tip).empty()) {
        return true;
      }
      by_use.push_back({shard->recency.used_ms(slot), {shard->id, slot}});
      return ++taken < kCandidatesPerShardMax;
    });
  }
  std::ranges::stable_sort(by_use, {}, [](const auto& entry) { return entry.first; });
  std::vector<Victim> candidates;
  for (const auto& [used_ms, victim] : by_use) candidates.push_back(victim);
  return candidates;
}

std::optional<std::vector<Victim>> Reclaim::choose_victims(Shard& shard, std::uint64_t chunks,
                                                           SlotIndex keep, std::uint64_t now_ms) {
  std::vector<Victim> victims;
  Supply supply = supply_for(shard);
  choose_own(shard, chunks, keep, now_ms, supply, victims);
  if (suffices(shard, chunks, supply)) return victims;

  const auto missing =
      static_cast<std::int64_t>(extents_for(shard, chunks - std::min(chunks, supply.free_chunks))) *
      extent_bytes(shard);
  const bool owner_binds = missing > supply.owner_room + supply.owner_idle;
  const std::vector<Shard*> others = others_in_order(shard, owner_binds);
  Rehearsal rehearsal(shards_);
  // Owner by owner; within one owner the oldest first over all its shards.
  for (auto begin = others.begin(); begin != others.end();) {
    const std::uint32_t owner = (*begin)->key.owner_uid;
    const auto end = std::find_if(
        begin, others.end(), [&](const Shard* other) { return other->key.owner_uid != owner; });
    for (const Victim& victim : candidates_of({begin, end}, now_ms)) {
      const std::int64_t bytes = rehearsal.end_of(victim);
      supply.idle += bytes;
      if (owner == shard.key.owner_uid) supply.owner_idle += bytes;
      if (!suffices(shard, chunks, supply)) continue;
      for (const Victim& needed : rehearsal.needed()) victims.push_back(needed);
      return victims;
    }
    begin = end;
  }
  return std::nullopt;
}

bool Reclaim::end_oldest_while(const std::function<bool()>& wanted, std::span<Shard* const> shards,
                               std::uint64_t now_ms) {
  const auto candidates = candidates_of(shards, now_ms);
  for (const Victim& victim : candidates) {
    if (!wanted()) break;
    Shard& shard = shards_.at(victim.shard);
    shard.retire(victim.slot, MissReason::evicted_lru, now_ms);
    shard.sweep();
  }
  return !candidates.empty();
}

std::optional<SlotIndex> Reclaim::choose_one(Shard& shard, std::uint64_t now_ms) {
  const PinSet pins = shard.pages.scan_pins();
  std::optional<SlotIndex> chosen;
  shard.walk_least_recent(now_ms, [&](SlotIndex slot) {
    if (!pins.contains(slot, shard.head(slot).generation)) chosen = slot;
    return !chosen;
  });
  return chosen;
}

std::vector<std::pair<ShardId, ExtentIndex>> Reclaim::begin_departures(
    const Shard& shard, std::uint64_t missing_chunks) {
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
