#include "daemon/core/shard.hpp"

#include <algorithm>

#include "daemon/core/seals.hpp"
#include "shared/check.hpp"

namespace hotkv::core {

Shard::Shard(ShardId shard_id, Recipe shard_recipe, ShardMemory memory,
             const Capacities& capacities, const Geometry& geometry, StoreGate& gate)
    : id(shard_id),
      key{reinterpret_cast<const TablesHeader*>(memory.tables.data())->owner_uid,
          shard_recipe.fields().model_id, shard_recipe.fields().layers},
      recipe(std::move(shard_recipe)),
      tables(memory, capacities, geometry),
      sessions(tables, gate),
      ledger(tables, gate),
      chunks(tables, gate),
      kept_heads(tables, gate),
      pages(tables, gate),
      gate_(gate) {}

// ---- looking ------------------------------------------------------------------------------------

Epoch Shard::epoch(SlotIndex slot) const {
  return Epoch{tables.slot(slot).epoch.load(std::memory_order_relaxed)};
}

SessionId Shard::session(SlotIndex slot) const {
  const SlotRecord& record = tables.slot(slot);
  const auto id_read = read_session_id(record.id_bytes, record.id);
  HOTKV_CHECK(id_read.has_value(), "a live slot has no session id");
  return *id_read;
}

AtomicWord* Shard::own_seal(SlotIndex slot) const {
  const TablesHeader& header = tables.header();
  const std::uint64_t own =
      head_seal(header, slot_identity(header, slot, session(slot), epoch(slot)), head(slot));
  for (AtomicWord& seal : tables.slot(slot).seals) {
    if (seal.load(std::memory_order_relaxed) == own) return &seal;
  }
  return nullptr;
}

std::optional<PageIndex> Shard::holder(SlotIndex slot) const {
  const std::uint32_t page = tables.slot(slot).holder.load(std::memory_order_relaxed);
  if (page == 0) return std::nullopt;
  return PageIndex{page - 1};
}

TokenCount Shard::published(SlotIndex slot) const {
  const HeadWord now = head(slot);
  const auto untrusted =
      LengthWord::from_bits(tables.length_word(slot).load(std::memory_order_acquire));
  if (untrusted.generation != now.generation) return TokenCount{0};
  return std::min(untrusted.tokens, chunks.capacity(now.tip));
}

// Only the chunk at which this generation began can be shared: what is linked in it has one owner.
// So there is no need to walk to the length, which would cost what a client chose to be granted.
bool Shard::needs_tail_copy(SlotIndex slot, TokenCount length) const {
  const std::uint32_t chunk_tokens = tables.geometry().chunk_tokens;
  const Tip base = base_tip(slot);
  return length.value() % chunk_tokens != 0 && base.is_chunk() &&
         chunks.word(base.chunk()).ordinal == length.value() / chunk_tokens &&
         chunks.owners(base.chunk()) > 1;
}

Tip Shard::base_tip(SlotIndex slot) const {
  return slot.value() < base_tips_.size() ? base_tips_[slot.value()] : Tip::empty();
}

void Shard::set_base_tip(SlotIndex slot, Tip tip) {
  if (slot.value() >= base_tips_.size()) base_tips_.resize(slot.value() + 1, Tip::empty());
  base_tips_[slot.value()] = tip;
}

Position Shard::position(SlotIndex slot) const {
  const HeadWord now = head(slot);
  const TokenCount length = published(slot);
  // Chunks behind the tail were linked in this generation, so this head alone owns them.
  const TokenCount writable = needs_tail_copy(slot, length) ? length : chunks.capacity(now.tip);
  return {slot, now.generation, now.tip, length, writable};
}

std::optional<SlotIndex> Shard::find(const SessionId& wanted, Epoch wanted_epoch) const {
  const auto slot = sessions.find(wanted);
  if (!slot || epoch(*slot) != wanted_epoch) return std::nullopt;
  return slot;
}

CacheMiss Shard::absence(const SessionId& wanted, Epoch wanted_epoch,
                         std::optional<TokenCount> expected, std::uint64_t now_ms) const {
  CacheMiss miss{wanted, wanted_epoch, expected, MissReason::unknown_session, {}, {}, {}, {}};
  const auto entry = ledger.find(wanted);
  if (!entry) return miss;
  miss.known_epoch = entry->epoch;
  if (entry->fate) {
    miss.known_length = entry->last_length;
    miss.age_ms = now_ms >= entry->ended_ms ? now_ms - entry->ended_ms : 0;
  }
  if (wanted_epoch < entry->epoch) {
    miss.reason = MissReason::superseded_epoch;
  } else if (wanted_epoch == entry->epoch && entry->fate &&
             *entry->fate != MissReason::superseded_epoch) {
    // (The highest epoch cannot have been superseded: that fate is of the context before it, and
    // the opening of this one was cut short.)
    miss.reason = *entry->fate;
  }
  return miss;
}

std::uint64_t Shard::last_used_ms(SlotIndex slot, std::uint64_t now_ms) const {
  const std::uint64_t seen = recency.used_ms(slot);
  const std::uint64_t age =
      touch_age_ms(tables.untrusted_touch(slot).load(std::memory_order_relaxed), now_ms);
  // From the beginning of the tick: the use was then or a little later. Rounded up, a touch would
  // pass over uses that the daemon saw itself, and the order would depend on where ticks end.
  const std::uint64_t tick_ms = now_ms - now_ms % kTouchTickMs;
  return age < tick_ms ? std::max(seen, tick_ms - age) : seen;
}

std::uint64_t Shard::provisioned_bytes() const {
  return (std::uint64_t{chunks.present_count()} + chunks.arriving_count()) *
         tables.geometry().extent_bytes;
}

void Shard::keep_one_seal(SlotIndex slot, const AtomicWord* own) {
  for (AtomicWord& seal : tables.slot(slot).seals) {
    if (&seal != own && seal.load(std::memory_order_relaxed) != 0) gate_.store(seal, 0);
  }
}

void Shard::note_identity(SlotIndex slot, const SessionId& own_session, Epoch own_epoch) {
  if (slot.value() >= identities_.size()) identities_.resize(slot.value() + 1);
  identities_[slot.value()] = slot_identity(tables.header(), slot, own_session, own_epoch);
}

// ---- heads --------------------------------------------------------------------------------------

// A live slot has one seal, a free one none. Stores, in this order:
//   1. the other seal := of the next head
//   2. head := next
//   3. the old seal := 0
// Killed after 1 or 2, there are two, and the head tells which of them holds (Rebuild).
void Shard::set_head(SlotIndex slot, HeadWord next) {
  SlotRecord& record = tables.slot(slot);
  const bool is_second = record.seals[0].load(std::memory_order_relaxed) == 0;
  AtomicWord& old = record.seals[is_second ? 1 : 0];
  AtomicWord& other = record.seals[is_second ? 0 : 1];
  if (!next.tip.is_free()) {
    gate_.store(other, head_seal(tables.header(), identities_.at(slot.value()), next));
  }
  gate_.store_head(record.head, next);
  if (old.load(std::memory_order_relaxed) != 0) gate_.store(old, 0);
}

// ---- the end of a generation --------------------------------------------------------------------

// The one mechanism behind truncate, take-over, close, tail copy and retire. Stores, in this order:
//   1. kept head := old {slot, generation, tip}: the old chain keeps its owner
//   2. length: exchange to the next generation: late publishes fail from here on
//   3. head := {next generation, next tip}, with its seal
// Killed after 1, the kept head is still current and is dropped; killed after 2, the next daemon
// sees a length of generation + 1 and does 3 itself (Rebuild). A reader that pinned the old
// generation before 3 is seen by the sweep that follows (words.hpp, PIN AGAINST RECYCLE).
void Shard::end_generation(SlotIndex slot, const Successor& successor) {
  const HeadWord old = head(slot);
  const Generation next{old.generation.value() + 1};
  if (old.tip.is_chunk()) {
    if (!kept_heads.has_room()) sweep();
    kept_heads.keep(slot, old);
  }
  AtomicWord& word = tables.length_word(slot);
  TokenCount length = successor.length.value_or(TokenCount{0});
  gate_.probe();
  if (successor.length) {
    exchange_length(word, {next, length});
  } else {
    // Keep the count whatever it is at the moment of the exchange: a publish that came first is
    // part of it, a later one fails.
    std::uint64_t seen = word.load(std::memory_order_acquire);
    do {
      const auto untrusted = LengthWord::from_bits(seen);
      length = untrusted.generation == old.generation
                   ? std::min(untrusted.tokens, chunks.capacity(old.tip))
                   : TokenCount{0};
    } while (!word.compare_exchange_weak(seen, LengthWord{next, length}.bits(),
                                         std::memory_order_acq_rel, std::memory_order_acquire));
  }
  const Tip tip = successor.tip.value_or(chunks.ancestor(old.tip, length));
  if (tip.is_chunk()) chunks.ref(tip.chunk());
  set_base_tip(slot, tip);
  set_head(slot, {next, tip});
}

void Shard::truncate(SlotIndex slot, TokenCount to) {
  end_generation(slot, {to, std::nullopt});
}

void Shard::cut_off_writers(SlotIndex slot) {
  end_generation(slot, {std::nullopt, std::nullopt});
}

void Shard::copy_tail(SlotIndex slot, TokenCount length, ChunkIndex taken) {
  const Tip tail = base_tip(slot);
  HOTKV_CHECK(tail.is_chunk(), "a tail copy without a tail");
  // Published rows of the shared tail cannot change under the copy: written in place = exactly one
  // owner. Rows behind them are left out: a writer that was cut off may still store there.
  copy_rows(tail.chunk(), taken, length.value() % tables.geometry().chunk_tokens);
  const ChunkWord place = chunks.word(tail.chunk());
  chunks.place(slot, taken, place);
  if (place.previous) chunks.ref(*place.previous);
  // The length is the one that was copied: tokens published meanwhile could only be scribbles, as
  // nobody was granted room in a shared tail.
  end_generation(slot, {length, Tip::at(taken)});
  ++counters.tail_copies;
}

void Shard::copy_rows(ChunkIndex from, ChunkIndex to, std::uint32_t tokens) const {
  const Geometry& g = tables.geometry();
  const auto copy = [&](ByteOffset tensor, std::uint64_t row_bytes) {
    const auto rows = tables.chunk(from).subspan(tensor.value(), tokens * row_bytes);
    std::ranges::copy(rows, tables.chunk(to).begin() + static_cast<std::ptrdiff_t>(tensor.value()));
  };
  for (std::uint32_t layer = 0; layer < g.layer_count; ++layer) {
    copy(g.keys_offset(layer), g.key_row_bytes);
    copy(g.values_offset(layer), g.value_row_bytes);
  }
}

void Shard::link(SlotIndex slot, ChunkIndex taken) {
  const HeadWord now = head(slot);
  ChunkWord place;
  if (now.tip.is_chunk()) {
    place.previous = now.tip.chunk();
    place.ordinal = chunks.word(now.tip.chunk()).ordinal + 1;
  }
  chunks.place(slot, taken, place);
  // The head owns the new chunk; the old tip's owner is now the new chunk instead of the head.
  chunks.ref(taken);
  set_head(slot, {now.generation, Tip::at(taken)});
}

// ---- the life of a context ----------------------------------------------------------------------

void Shard::open(SlotIndex free_slot, const SessionId& new_session, Epoch new_epoch,
                 PageIndex new_holder, std::uint64_t now_ms) {
  SlotRecord& record = tables.slot(free_slot);
  const Generation next{head(free_slot).generation.value() + 1};
  gate_.store(record.state, static_cast<std::uint32_t>(SlotState::opening));
  gate_.store(record.epoch, new_epoch.value());
  gate_.store(record.id_bytes, new_session.size_bytes());
  for (std::size_t i = 0; i < SessionId::kWords; ++i) {
    gate_.store(record.id[i], new_session.words()[i]);
  }
  gate_.store(record.holder, new_holder.value() + 1);
  gate_.store(record.opened_ms, now_ms);
  gate_.store(record.used_ms, now_ms);
  gate_.probe();
  exchange_length(tables.length_word(free_slot), {next, TokenCount{0}});
  note_identity(free_slot, new_session, new_epoch);
  set_head(free_slot, {next, Tip::empty()});
  gate_.store(record.state, static_cast<std::uint32_t>(SlotState::live));
  ledger.revive(new_session);
  sessions.insert(new_session, free_slot);
  pages.held_slots(new_holder).insert(free_slot.value());
  note_use(free_slot, now_ms);
}

void Shard::set_holder(SlotIndex slot, std::optional<PageIndex> next) {
  if (const auto old = holder(slot)) pages.held_slots(*old).erase(slot.value());
  gate_.store(tables.slot(slot).holder, next ? next->value() + 1 : 0);
  if (next) pages.held_slots(*next).insert(slot.value());
}

void Shard::retire(SlotIndex slot, MissReason reason, std::uint64_t now_ms) {
  SlotRecord& record = tables.slot(slot);
  const SessionId ended = session(slot);
  ledger.bury(ended, reason, published(slot), now_ms);
  // From this store on the context is over: a daemon killed later finishes it.
  gate_.store(record.state, kRetiringBase + static_cast<std::uint32_t>(reason));
  end_generation(slot, {TokenCount{0}, Tip::free()});
  const bool worn_out = !has_generations_left(slot);
  gate_.store(record.state,
              static_cast<std::uint32_t>(worn_out ? SlotState::worn_out : SlotState::free));
  sessions.remove(ended, slot);
  if (const auto page = holder(slot)) pages.held_slots(*page).erase(slot.value());
  recency.remove(slot);
  if (!worn_out) sessions.give_back(slot);
  ++counters.ended[static_cast<std::uint32_t>(reason)];
}

void Shard::note_use(SlotIndex slot, std::uint64_t now_ms) {
  gate_.store(tables.slot(slot).used_ms, now_ms);
  // A touch word that nobody wrote for half its range would read as one from the future.
  tables.untrusted_touch(slot).store(touch_ticks(now_ms), std::memory_order_relaxed);
  recency.touch(slot, now_ms);
}

void Shard::sweep() {
  if (kept_heads.count() == 0) return;
  const PinSet pins = pages.scan_pins();
  kept_heads.drop_if(
      [&](const KeptHead& kept) { return !pins.contains(kept.slot, kept.head.generation); },
      [&](const KeptHead& kept) { chunks.unref(kept.head.tip.chunk()); });
}

void Shard::end_dead_lease(SlotIndex slot) {
  // What was granted and never published goes back to the others with the lease.
  const TokenCount capacity = chunks.capacity(head(slot).tip);
  const std::uint32_t unused = capacity.value() - published(slot).value();
  if (unused >= tables.geometry().chunk_tokens && has_generations_left(slot)) {
    cut_off_writers(slot);
  }
  set_holder(slot, std::nullopt);
}

bool Shard::end_claims(PageIndex page, std::size_t& leases_left) {
  if (!pages.has_claims(page)) return true;
  pages.clear_pins(page);
  const auto& held = pages.held_slots(page);
  for (; !held.empty() && leases_left > 0; --leases_left) end_dead_lease(SlotIndex{*held.begin()});
  if (!held.empty()) return false;
  pages.end_claims(page);
  sweep();
  return true;
}

std::vector<SlotIndex> Shard::live_slots_below(std::uint32_t end) const {
  std::vector<SlotIndex> slots;
  for (std::uint32_t i = 0; i < end; ++i) {
    if (!head(SlotIndex{i}).tip.is_free()) slots.push_back(SlotIndex{i});
  }
  return slots;
}

// Chunks that kept heads own and no live context does.
std::uint32_t Shard::kept_only_chunks() const {
  if (kept_heads.count() == 0) return 0;
  std::unordered_set<std::uint32_t> seen;
  const auto walk = [&](Tip tip) {
    std::uint32_t fresh = 0;
    for (; tip.is_chunk() && seen.insert(tip.chunk().value()).second; ++fresh) {
      const auto previous = chunks.word(tip.chunk()).previous;
      tip = previous ? Tip::at(*previous) : Tip::empty();
    }
    return fresh;
  };
  for (const SlotIndex slot : live_slots()) walk(head(slot).tip);
  std::uint32_t kept_only = 0;
  for (const KeptHead& kept : kept_heads.all()) kept_only += walk(kept.head.tip);
  return kept_only;
}

Account Shard::account() const {
  const Geometry& g = tables.geometry();
  Account account;
  account.provisioned = provisioned_bytes();
  account.in_transit = std::uint64_t{chunks.arriving_count()} * g.extent_bytes;
  const std::uint64_t tail = g.extent_bytes - g.chunks_per_extent * g.chunk_stride_bytes;
  account.free = std::uint64_t{chunks.free_count()} * g.chunk_stride_bytes +
                 std::uint64_t{chunks.present_count()} * tail;
  account.kept = std::uint64_t{kept_only_chunks()} * g.chunk_stride_bytes;
  const std::uint64_t in_use =
      std::uint64_t{chunks.present_count()} * g.chunks_per_extent - chunks.free_count();
  account.used = in_use * g.chunk_stride_bytes - account.kept;
  return account;
}

}  // namespace hotkv::core
