#include "daemon/core/rebuild.hpp"

#include <algorithm>
#include <map>
#include <vector>

#include "daemon/core/seals.hpp"

namespace hotkv::core {
namespace {

// Generations that an open and the retire after it can still use when a slot wears out.
constexpr std::uint32_t kGenerationsPastMax = 2;

bool is_state(std::uint32_t number, SlotState state) {
  return number == static_cast<std::uint32_t>(state);
}

}  // namespace

void Rebuild::run() {
  shard_.chunks.reset();
  find_owners();
  shard_.ledger.rebuild([this](const SessionId& session) {
    const auto owner = owners_.find(session);
    return owner == owners_.end() ? std::nullopt : std::optional(shard_.epoch(owner->second));
  });
  shard_.kept_heads.rebuild();
  shard_.pages.rebuild();
  for (const KeptHead& kept : shard_.kept_heads.all()) {
    kept_.emplace(kept.slot.value(), kept.head.bits());
  }

  protect_owners();
  for (std::uint32_t i = 0; i < shard_.tables.capacities().slot_count; ++i) {
    settle_slot(SlotIndex{i});
  }
  for (const SlotIndex homeless : shard_.sessions.rebuild()) {
    lose(homeless, MissReason::lost_in_restart);
    if (shard_.has_generations_left(homeless)) shard_.sessions.give_back(homeless);
  }
  settle_kept_heads();

  const std::vector<SlotIndex> live = live_slots();
  for (const SlotIndex slot : live) {
    shard_.chunks.adopt_chain(shard_.head(slot).tip);
    settle_holder(slot);
    shard_.recency.touch(
        slot, std::min(shard_.tables.slot(slot).used_ms.load(std::memory_order_relaxed), now_ms_));
  }
  for (const KeptHead& kept : shard_.kept_heads.all()) {
    shard_.chunks.adopt_chain(kept.head.tip);
  }
  shard_.chunks.unseal_free();
  for (const SlotIndex slot : live) settle_base_tip(slot);
}

void Rebuild::find_owners() {
  for (const SlotIndex slot : live_slots()) {
    const SlotRecord& record = shard_.tables.slot(slot);
    const auto session = read_session_id(record.id_bytes, record.id);
    if (session && shard_.own_seal(slot)) owners_.emplace(*session, slot);
  }
}

void Rebuild::protect_owners() {
  for (const auto& [session, slot] : owners_) {
    const SlotRecord& record = shard_.tables.slot(slot);
    // One that is retiring has its fate in the ledger, and keeps it.
    if (!is_state(record.state.load(std::memory_order_relaxed), SlotState::live)) continue;
    const auto entry = shard_.ledger.find(session);
    if (!entry) continue;
    if (entry->fate) fates_.emplace(session, *entry->fate);
    shard_.ledger.protect(session);
  }
}

void Rebuild::settle_slot(SlotIndex slot) {
  SlotRecord& record = shard_.tables.slot(slot);
  const std::uint32_t state = record.state.load(std::memory_order_relaxed);
  const HeadWord head = shard_.head(slot);
  if (is_state(state, SlotState::worn_out) && head.tip.is_free() && count_seals(record) == 0)
    return;
  if (is_state(state, SlotState::live) && !head.tip.is_free()) {
    settle_live_slot(slot);
    return;
  }
  if (state == 0 && head.tip.is_free() && count_seals(record) == 0) return;
  // Opening or retiring (or nonsense): the slot becomes free. Only a retiring context's chain may
  // be pinned; an opening one has none.
  const bool retiring = miss_reason_from_number(state - kRetiringBase).has_value();
  free_slot(slot, retiring);
}

void Rebuild::keep(SlotIndex slot, HeadWord head) {
  if (!head.tip.is_chunk() || kept_.contains({slot.value(), head.bits()})) return;
  if (!shard_.kept_heads.has_room()) {
    // Killed with a full table: those that nobody pins make room. Nothing is counted yet.
    const PinSet pins = shard_.pages.scan_pins();
    shard_.kept_heads.drop_if(
        [&](const KeptHead& kept) { return !pins.contains(kept.slot, kept.head.generation); },
        [](const KeptHead&) {});
  }
  if (!shard_.kept_heads.has_room()) return;  // only a damaged table is full of pinned heads
  shard_.kept_heads.keep(slot, head);
  kept_.emplace(slot.value(), head.bits());
}

void Rebuild::free_slot(SlotIndex slot, bool keep_chain) {
  SlotRecord& record = shard_.tables.slot(slot);
  const HeadWord old = shard_.head(slot);
  if (!old.tip.is_free()) {
    if (keep_chain && shard_.chunks.is_sound(slot, old.tip, sound_)) keep(slot, old);
    // A generation that was never written must not wrap round to those of the past: worn out below.
    const bool is_wild = old.generation.value() > kGenerationMax + kGenerationsPastMax;
    const Generation next{old.generation.value() + (is_wild ? 0 : 1)};
    gate_.probe();
    exchange_length(shard_.tables.length_word(slot), {next, TokenCount{0}});
    shard_.set_head(slot, {next, Tip::free()});
  }
  shard_.keep_one_seal(slot, nullptr);
  const bool worn_out = !shard_.has_generations_left(slot);
  gate_.store(record.state,
              static_cast<std::uint32_t>(worn_out ? SlotState::worn_out : SlotState::free));
}

void Rebuild::lose(SlotIndex slot, MissReason reason) {
  SlotRecord& record = shard_.tables.slot(slot);
  if (const auto session = read_session_id(record.id_bytes, record.id)) {
    const auto entry = shard_.ledger.find(*session);
    const auto owner = owners_.find(*session);
    const bool is_owner = owner != owners_.end() && owner->second == slot;
    // Without a seal the name may be another's. If that one has an end or a slot of its own, what
    // the ledger says of it stands; else it is this one.
    const bool is_likely = owner == owners_.end() && entry && !entry->fate;
    if (is_owner && !entry) (void)shard_.ledger.remember(*session, shard_.epoch(slot), now_ms_);
    if (is_owner || is_likely) {
      const bool sound = shard_.chunks.is_sound(slot, shard_.head(slot).tip, sound_);
      shard_.ledger.bury(*session, reason, sound ? shard_.published(slot) : TokenCount{0}, now_ms_);
    }
  }
  end(slot, reason);
}

void Rebuild::end(SlotIndex slot, MissReason reason) {
  gate_.store(shard_.tables.slot(slot).state, kRetiringBase + static_cast<std::uint32_t>(reason));
  free_slot(slot, true);
  ++shard_.counters.ended[static_cast<std::uint32_t>(reason)];
}

void Rebuild::settle_live_slot(SlotIndex slot) {
  SlotRecord& record = shard_.tables.slot(slot);
  const HeadWord head = shard_.head(slot);
  const auto session = read_session_id(record.id_bytes, record.id);
  // Without its seal session, epoch or head is not what was stored: it would show other bytes than
  // its own.
  const AtomicWord* own = session ? shard_.own_seal(slot) : nullptr;
  if (own == nullptr || !shard_.chunks.is_sound(slot, head.tip, sound_)) {
    lose(slot, MissReason::lost_in_restart);
    return;
  }
  shard_.note_identity(slot, *session, shard_.epoch(slot));
  shard_.keep_one_seal(slot, own);
  // The ledger hears of a context before its slot does, and forgets none that lives: one that it
  // does not know, or not at this epoch yet, was opened by nobody.
  const auto entry = shard_.ledger.find(*session);
  if (!entry || shard_.epoch(slot) > entry->epoch) {
    lose(slot, MissReason::lost_in_restart);
    return;
  }
  if (shard_.epoch(slot) < entry->epoch) {
    lose(slot, MissReason::superseded_epoch);
    return;
  }
  // The fate of this epoch is stored: its end had begun, or its making had not ended, and nobody
  // had an answer.
  if (const auto fate = fates_.find(*session); fate != fates_.end()) {
    shard_.ledger.bury(*session, fate->second, entry->last_length, entry->ended_ms);  // as it is
    end(slot, fate->second);
    return;
  }

  const auto untrusted =
      LengthWord::from_bits(shard_.tables.length_word(slot).load(std::memory_order_acquire));
  const bool is_next = untrusted.generation.value() == head.generation.value() + 1;
  if ((untrusted.generation != head.generation && !is_next) ||
      untrusted.tokens > shard_.chunks.capacity(head.tip)) {
    lose(slot, MissReason::lost_in_restart);
    return;
  }
  if (!is_next) return;
  // Between steps 2 and 3 of end_generation. The kept head stands already, unless the word is a
  // writer's scribble; then it is kept now, so that the old generation's pins hold all the same.
  keep(slot, head);
  shard_.set_head(slot, {untrusted.generation, shard_.chunks.ancestor(head.tip, untrusted.tokens)});
}

void Rebuild::settle_kept_heads() {
  shard_.kept_heads.drop_if(
      [&](const KeptHead& kept) {
        return kept.slot.value() >= shard_.tables.capacities().slot_count ||
               !kept.head.tip.is_chunk() ||
               !shard_.chunks.is_sound(kept.slot, kept.head.tip, sound_) ||
               shard_.head(kept.slot).generation <= kept.head.generation;
      },
      [](const KeptHead&) {});  // nothing is counted yet
}

void Rebuild::settle_holder(SlotIndex slot) {
  const auto page = shard_.holder(slot);
  if (!page) return;
  if (shard_.pages.is_taken(*page)) {
    shard_.pages.held_slots(*page).insert(slot.value());
  } else {
    gate_.store(shard_.tables.slot(slot).holder, 0);
  }
}

// The chunk at which the generation began is the last that can have two owners; where none has,
// there is nothing to copy and nothing to know.
void Rebuild::settle_base_tip(SlotIndex slot) {
  Tip tip = shard_.head(slot).tip;
  while (tip.is_chunk() && shard_.chunks.owners(tip.chunk()) == 1) {
    const auto previous = shard_.chunks.word(tip.chunk()).previous;
    tip = previous ? Tip::at(*previous) : Tip::empty();
  }
  shard_.set_base_tip(slot, tip);
}

}  // namespace hotkv::core
