#include "daemon/core/verify.hpp"

#include <set>
#include <unordered_map>

#include "daemon/core/seals.hpp"
#include "shared/session_hash.hpp"

namespace hotkv::core {
namespace {

using Broken = std::optional<std::string>;

std::string at_slot(SlotIndex slot) {
  return "slot " + std::to_string(slot.value());
}
std::string at_chunk(std::uint32_t chunk) {
  return "chunk " + std::to_string(chunk);
}

// Owners of every chunk, counted from heads and kept heads alone.
std::unordered_map<std::uint32_t, std::uint32_t> count_owners(const Shard& shard) {
  std::unordered_map<std::uint32_t, std::uint32_t> owners;
  const auto walk = [&](Tip tip) {
    while (tip.is_chunk()) {
      if (owners[tip.chunk().value()]++ > 0) return;
      const auto previous = shard.chunks.word(tip.chunk()).previous;
      tip = previous ? Tip::at(*previous) : Tip::empty();
    }
  };
  for (const SlotIndex slot : shard.live_slots()) walk(shard.head(slot).tip);
  for (const KeptHead& kept : shard.kept_heads.all()) walk(kept.head.tip);
  return owners;
}

// Everything after this may follow the numbers that stand there.
Broken verify_slot_numbers(const Shard& shard) {
  const std::uint32_t slot_count = shard.tables.capacities().slot_count;
  for (const IndexEntry& word : shard.tables.index()) {
    const std::uint64_t entry = word.load(std::memory_order_relaxed);
    if (entry != 0 && index_slot(entry).value() >= slot_count) {
      return "index entry of " + at_slot(index_slot(entry)) + ": there is no such slot";
    }
  }
  for (const KeptHead& kept : shard.kept_heads.all()) {
    if (kept.slot.value() >= slot_count) {
      return "kept head of " + at_slot(kept.slot) + ": there is no such slot";
    }
  }
  return std::nullopt;
}

Broken verify_slots(const Shard& shard, ChunkPool::SoundChunks& sound) {
  std::uint32_t live = 0;
  for (std::uint32_t i = 0; i < shard.sessions.used_end(); ++i) {
    const SlotIndex slot{i};
    const SlotRecord& record = shard.tables.slot(slot);
    const auto state = record.state.load(std::memory_order_relaxed);
    if (shard.head(slot).tip.is_free()) {
      if (state == static_cast<std::uint32_t>(SlotState::free) ||
          state == static_cast<std::uint32_t>(SlotState::worn_out)) {
        continue;
      }
      return at_slot(slot) + ": head is free, state is " + std::to_string(state);
    }
    ++live;
    if (state != static_cast<std::uint32_t>(SlotState::live)) {
      return at_slot(slot) + ": head is live, state is " + std::to_string(state);
    }
    const auto session = read_session_id(record.id_bytes, record.id);
    if (!session) return at_slot(slot) + ": no session id";
    if (shard.sessions.find(*session) != slot) return at_slot(slot) + ": not found by its session";
    const auto entry = shard.ledger.find(*session);
    if (!entry) return at_slot(slot) + ": session is not in the ledger";
    if (entry->epoch != shard.epoch(slot)) return at_slot(slot) + ": epoch is not the ledger's";
    if (entry->fate) return at_slot(slot) + ": live, but the ledger has a fate";
    if (!shard.recency.contains(slot)) return at_slot(slot) + ": not in the order of use";
    if (!shard.chunks.is_sound(slot, shard.head(slot).tip, sound))
      return at_slot(slot) + ": chain is unsound";
    const auto holder = shard.holder(slot);
    if (holder && !shard.pages.is_taken(*holder)) return at_slot(slot) + ": holder has no page";
  }
  if (live != shard.sessions.live_count()) return "live slots and their count differ";
  if (live != shard.recency.count()) return "live slots and the order of use differ";
  std::uint32_t indexed = 0;
  for (const IndexEntry& entry : shard.tables.index()) {
    if (entry.load(std::memory_order_relaxed) != 0) ++indexed;
  }
  if (indexed != live)
    return "index has " + std::to_string(indexed) + " entries for " + std::to_string(live) +
           " live slots";
  return std::nullopt;
}

// Last: what else is wrong says more.
Broken verify_seals(const Shard& shard) {
  for (std::uint32_t i = 0; i < shard.sessions.used_end(); ++i) {
    const SlotIndex slot{i};
    const auto count = count_seals(shard.tables.slot(slot));
    if (shard.head(slot).tip.is_free()) {
      if (count != 0) return at_slot(slot) + ": head is free, and sealed";
      continue;
    }
    if (shard.own_seal(slot) == nullptr) return at_slot(slot) + ": its seal is another's";
    if (count != 1) return at_slot(slot) + ": it has two seals";
  }
  return std::nullopt;
}

Broken verify_kept_heads(const Shard& shard, ChunkPool::SoundChunks& sound) {
  for (const KeptHead& kept : shard.kept_heads.all()) {
    if (!kept.head.tip.is_chunk() || !shard.chunks.is_sound(kept.slot, kept.head.tip, sound)) {
      return "kept head of " + at_slot(kept.slot) + ": chain is unsound";
    }
    if (shard.head(kept.slot).generation <= kept.head.generation) {
      return "kept head of " + at_slot(kept.slot) + ": its generation is not over";
    }
  }
  return std::nullopt;
}

// Most of a large arena was never used. Its bits are looked at by words.
Broken verify_extents_never_used(const Shard& shard) {
  const std::uint32_t extent_count = shard.tables.geometry().extent_count;
  for (std::uint32_t i = shard.chunks.known_extents(); i < extent_count;) {
    const bool is_whole_word = i % 64 == 0 && extent_count - i >= 64;
    if (is_whole_word ? shard.tables.extent_bits()[i / 64].load(std::memory_order_relaxed) != 0
                      : shard.chunks.is_accounted(ExtentIndex{i})) {
      return "extents from " + std::to_string(i) + " on: a bit is set, none was ever used";
    }
    i += is_whole_word ? 64 : 1;
  }
  return std::nullopt;
}

Broken verify_chunks(const Shard& shard, const std::vector<ChunkIndex>& booked) {
  const Geometry& g = shard.tables.geometry();
  const auto owners = count_owners(shard);
  if (auto broken = verify_extents_never_used(shard)) return broken;
  for (const auto& [chunk, count] : owners) {
    if (g.extent_of(ChunkIndex{chunk}).value() >= shard.chunks.known_extents()) {
      return at_chunk(chunk) + ": in use, no memory";
    }
  }
  std::set<std::uint32_t> taken;
  for (const ChunkIndex chunk : booked) {
    if (!taken.insert(chunk.value()).second) return at_chunk(chunk.value()) + ": booked twice";
    if (owners.contains(chunk.value())) return at_chunk(chunk.value()) + ": booked and owned";
  }
  std::uint64_t free = 0;
  std::uint32_t present = 0;
  const std::uint32_t known = shard.chunks.known_extents();
  for (std::uint32_t i = 0; i < known; ++i) {
    const ExtentIndex extent{i};
    const bool is_present = shard.chunks.state(extent) == ChunkPool::ExtentState::present;
    if (is_present) ++present;
    if (is_present != shard.chunks.is_accounted(extent)) {
      return "extent " + std::to_string(i) + ": its bit is not what is so";
    }
    std::uint32_t used = 0;
    for (std::uint32_t k = 0; k < g.chunks_per_extent; ++k) {
      const std::uint32_t chunk = i * g.chunks_per_extent + k;
      const auto owned = owners.find(chunk);
      const std::uint32_t counted = owned == owners.end() ? 0 : owned->second;
      if (!is_present) {
        if (counted != 0 || taken.contains(chunk)) return at_chunk(chunk) + ": in use, no memory";
        continue;
      }
      if (shard.chunks.owners(ChunkIndex{chunk}) != counted) {
        return at_chunk(chunk) + ": has " + std::to_string(counted) + " owners, counted as " +
               std::to_string(shard.chunks.owners(ChunkIndex{chunk}));
      }
      const bool in_use = counted != 0 || taken.contains(chunk);
      if (in_use == shard.chunks.is_free(ChunkIndex{chunk})) {
        return at_chunk(chunk) + (in_use ? ": in use and free" : ": leaked");
      }
      if (counted == 0 &&
          shard.tables.chunk_seal(ChunkIndex{chunk}).load(std::memory_order_relaxed) != 0) {
        return at_chunk(chunk) + ": nobody's, and sealed";
      }
      in_use ? ++used : ++free;
    }
    if (is_present && (used == 0) != shard.chunks.idle_extents().contains(i)) {
      return "extent " + std::to_string(i) + ": idle or not is wrong";
    }
  }
  if (free != shard.chunks.free_count()) return "free chunks and their count differ";
  if (present != shard.chunks.present_count()) return "present extents and their count differ";
  const Account account = shard.account();
  if (account.used + account.kept + account.free + account.in_transit != account.provisioned) {
    return "used + kept + free + in transit is not provisioned";
  }
  return std::nullopt;
}

}  // namespace

std::optional<std::string> verify_shard(const Shard& shard, const std::vector<ChunkIndex>& booked) {
  if (auto broken = verify_slot_numbers(shard)) return broken;
  ChunkPool::SoundChunks sound;
  if (auto broken = verify_slots(shard, sound)) return broken;
  if (auto broken = verify_kept_heads(shard, sound)) return broken;
  if (auto broken = verify_chunks(shard, booked)) return broken;
  return verify_seals(shard);
}

}  // namespace hotkv::core
