#include "daemon/core/session_table.hpp"

#include "shared/check.hpp"
#include "shared/session_hash.hpp"

namespace hotkv::core {

SessionTable::SessionTable(const ShardTables& tables, StoreGate& gate)
    : tables_(tables), gate_(gate), mask_(tables.capacities().index_count - 1) {}

std::uint64_t SessionTable::hash(const SessionId& session) const {
  return session_hash(session, tables_.header().hash_key);
}

std::optional<SlotIndex> SessionTable::find(const SessionId& session) const {
  const std::uint64_t sought = hash(session);
  for (std::uint32_t probe = 0; probe < kIndexProbesMax; ++probe) {
    const std::uint64_t entry =
        tables_.index()[(sought + probe) & mask_].load(std::memory_order_relaxed);
    if (entry == 0) return std::nullopt;
    if (index_tag_matches(entry, sought) &&
        slot_has_session(tables_.slot(index_slot(entry)), session)) {
      return index_slot(entry);
    }
  }
  return std::nullopt;
}

bool SessionTable::has_index_room(const SessionId& session) const {
  const std::uint64_t sought = hash(session);
  for (std::uint32_t probe = 0; probe < kIndexProbesMax; ++probe) {
    if (tables_.index()[(sought + probe) & mask_].load(std::memory_order_relaxed) == 0) return true;
  }
  return false;
}

void SessionTable::insert(const SessionId& session, SlotIndex slot) {
  const std::uint64_t sought = hash(session);
  for (std::uint32_t probe = 0; probe < kIndexProbesMax; ++probe) {
    IndexEntry& place = tables_.index()[(sought + probe) & mask_];
    if (place.load(std::memory_order_relaxed) != 0) continue;
    gate_.store(place, index_entry(sought, slot));
    ++live_count_;
    return;
  }
  HOTKV_CHECK(false, "insert without has_index_room");
}

std::uint32_t SessionTable::home_of_entry(std::uint64_t entry) const {
  const SlotRecord& slot = tables_.slot(index_slot(entry));
  const auto session = read_session_id(slot.id_bytes, slot.id);
  HOTKV_CHECK(session.has_value(), "an indexed slot has no session id");
  return static_cast<std::uint32_t>(hash(*session)) & mask_;
}

void SessionTable::remove(const SessionId& session, SlotIndex slot) {
  const std::uint64_t entry = index_entry(hash(session), slot);
  std::uint32_t hole = static_cast<std::uint32_t>(entry);  // replaced below
  bool found = false;
  for (std::uint32_t probe = 0; probe < kIndexProbesMax && !found; ++probe) {
    hole = static_cast<std::uint32_t>(hash(session) + probe) & mask_;
    found = tables_.index()[hole].load(std::memory_order_relaxed) == entry;
  }
  HOTKV_CHECK(found, "a live slot is not in the index");
  --live_count_;
  // Shift back every later entry of this run whose home is not after the hole, so that no look-up
  // ends at a hole before its entry. Copy first, clear last: an entry is never absent, at most
  // doubled, while it moves.
  for (std::uint32_t next = (hole + 1) & mask_;; next = (next + 1) & mask_) {
    const std::uint64_t moving = tables_.index()[next].load(std::memory_order_relaxed);
    if (moving == 0) break;
    const std::uint32_t distance_from_home = (next - home_of_entry(moving)) & mask_;
    const std::uint32_t distance_from_hole = (next - hole) & mask_;
    if (distance_from_home < distance_from_hole) continue;
    gate_.store(tables_.index()[hole], moving);
    hole = next;
  }
  gate_.store(tables_.index()[hole], 0);
}

std::optional<SlotIndex> SessionTable::take_free() {
  if (!returned_.empty()) {
    const SlotIndex slot = returned_.back();
    returned_.pop_back();
    return slot;
  }
  if (never_used_ == tables_.capacities().slot_count) return std::nullopt;
  return SlotIndex{never_used_++};
}

void SessionTable::give_back(SlotIndex slot) {
  returned_.push_back(slot);
}

std::vector<SlotIndex> SessionTable::rebuild() {
  std::vector<SlotIndex> homeless;
  for (IndexEntry& entry : tables_.index()) {
    if (entry.load(std::memory_order_relaxed) != 0) gate_.store(entry, 0);
  }
  returned_.clear();
  live_count_ = 0;
  never_used_ = 0;
  const std::uint32_t count = tables_.capacities().slot_count;
  // Slots that were never taken are all zero; only those before the last used one matter.
  for (std::uint32_t i = 0; i < count; ++i) {
    const SlotRecord& slot = tables_.slot(SlotIndex{i});
    if (slot.head.load(std::memory_order_relaxed) != 0 ||
        slot.state.load(std::memory_order_relaxed) != 0) {
      never_used_ = i + 1;
    }
  }
  for (std::uint32_t i = never_used_; i-- > 0;) {
    const SlotRecord& slot = tables_.slot(SlotIndex{i});
    if (!load_head(slot.head).tip.is_free()) {
      const auto session = read_session_id(slot.id_bytes, slot.id);
      HOTKV_CHECK(session.has_value(), "a live slot has no session id");
      if (has_index_room(*session)) {
        insert(*session, SlotIndex{i});
      } else {
        homeless.push_back(SlotIndex{i});
      }
    } else if (slot.state.load(std::memory_order_relaxed) ==
               static_cast<std::uint32_t>(SlotState::free)) {
      returned_.push_back(SlotIndex{i});
    }
  }
  return homeless;
}

}  // namespace hotkv::core
