#pragma once
// One shard: its tables, and the rules that tie them together. No budget, no clients' rights: those
// are the core's.

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include <hotkv/cache_miss.hpp>
#include <hotkv/recipe.hpp>
#include <hotkv/types.hpp>

#include "daemon/core/chunk_pool.hpp"
#include "daemon/core/core.hpp"
#include "daemon/core/kept_heads.hpp"
#include "daemon/core/ledger.hpp"
#include "daemon/core/page_table.hpp"
#include "daemon/core/recency.hpp"
#include "daemon/core/session_table.hpp"
#include "daemon/core/shard_tables.hpp"
#include "daemon/core/store_gate.hpp"

namespace hotkv::core {

class Shard {
 public:
  // The memory is formatted.
  Shard(ShardId id, Recipe recipe, ShardMemory memory, const Capacities& capacities,
        const Geometry& geometry, StoreGate& gate);
  Shard(const Shard&) = delete;
  Shard& operator=(const Shard&) = delete;

  // ---- looking
  [[nodiscard]] HeadWord head(SlotIndex slot) const { return load_head(tables.slot(slot).head); }
  [[nodiscard]] Epoch epoch(SlotIndex slot) const;
  [[nodiscard]] SessionId session(SlotIndex slot) const;  // only of a slot whose head is not free
  // The seal that belongs to the session, epoch and head of a live slot; none where one of them is
  // not as it was stored.
  [[nodiscard]] AtomicWord* own_seal(SlotIndex slot) const;
  [[nodiscard]] std::optional<PageIndex> holder(SlotIndex slot) const;
  // Published tokens. What writers can scribble is bounded: never more than the chain holds, and 0
  // where the word is of another generation.
  [[nodiscard]] TokenCount published(SlotIndex slot) const;
  // The chunk that holds token `length - 1` is part-filled and shared, so the next token needs a
  // copy of it. (Lengths are read once by the caller: writers can scribble on the word between two
  // reads.)
  [[nodiscard]] bool needs_tail_copy(SlotIndex slot, TokenCount length) const;
  [[nodiscard]] Position position(SlotIndex slot) const;
  [[nodiscard]] std::optional<SlotIndex> find(const SessionId& session, Epoch epoch) const;
  // Why there is no live context of this session and epoch.
  [[nodiscard]] CacheMiss absence(const SessionId& session, Epoch epoch,
                                  std::optional<TokenCount> expected, std::uint64_t now_ms) const;
  // Newest of what the daemon saw and what the touch word says.
  [[nodiscard]] std::uint64_t last_used_ms(SlotIndex slot, std::uint64_t now_ms) const;
  // Bytes of extents that have memory or are getting it.
  [[nodiscard]] std::uint64_t provisioned_bytes() const;
  [[nodiscard]] Account account() const;
  // Slots whose head is not free; of the first ones, where it is not known yet which were ever
  // used.
  [[nodiscard]] std::vector<SlotIndex> live_slots() const {
    return live_slots_below(sessions.used_end());
  }
  [[nodiscard]] std::vector<SlotIndex> live_slots_below(std::uint32_t end) const;

  // ---- changing; each leaves the files such that a kill between any two stores can be finished
  void open(SlotIndex free_slot, const SessionId& session, Epoch epoch, PageIndex holder,
            std::uint64_t now_ms);
  // Adds a taken chunk behind the tip: room for tokens to come, in the same generation.
  void link(SlotIndex slot, ChunkIndex taken);
  // Replaces the shared, part-filled chunk that ends `length` tokens by a copy of it. A new
  // generation of that length. Only if needs_tail_copy(slot, length).
  void copy_tail(SlotIndex slot, TokenCount length, ChunkIndex taken);
  // A new generation with the first `to` tokens.
  void truncate(SlotIndex slot, TokenCount to);
  // A new generation with what is published: cuts off whoever wrote in the old one.
  void cut_off_writers(SlotIndex slot);
  void set_holder(SlotIndex slot, std::optional<PageIndex> holder);
  // The end of the context: tombstone, then the slot is free.
  void retire(SlotIndex slot, MissReason reason, std::uint64_t now_ms);
  void note_use(SlotIndex slot, std::uint64_t now_ms);

  // May this slot begin another generation and still be retired later?
  [[nodiscard]] bool has_generations_left(SlotIndex slot) const {
    return head(slot).generation.value() < kGenerationMax;
  }
  // Takes every seal but this one; all where it is none.
  void keep_one_seal(SlotIndex slot, const AtomicWord* own);
  // Whose context a slot holds from now on; before the first head of it is stored. Seals are made
  // from this and not from the tables, so that what was damaged meanwhile gets none.
  void note_identity(SlotIndex slot, const SessionId& session, Epoch epoch);
  // The only place where a head is stored.
  void set_head(SlotIndex slot, HeadWord next);
  // Lets go of kept heads that nobody pins.
  void sweep();
  // Ends the lease of a client whose mapping is gone, so that nobody writes any more.
  void end_dead_lease(SlotIndex slot);
  // The client's mapping is gone: ends its pins, and its leases, as many as are left to be ended in
  // this turn. False: not all of them, and the page is its own until they are. Idempotent.
  bool end_claims(PageIndex page, std::size_t& leases_left);
  // The least recently used contexts, oldest first, as long as `visit` returns true. `visit` may
  // retire the slot it gets, and no other.
  template <class Visit>
  void walk_least_recent(std::uint64_t now_ms, Visit visit);

  // The parts. They keep their own rules; what ties them together is above.
  const ShardId id;
  const ShardKey key;
  const Recipe recipe;
  ShardTables tables;
  SessionTable sessions;
  Ledger ledger;
  ChunkPool chunks;
  KeptHeads kept_heads;
  PageTable pages;
  Recency recency;
  Counters counters;

 private:
  friend class Rebuild;

  // What begins when a generation ends.
  struct Successor {
    std::optional<TokenCount> length;  // nothing: the published length stays
    std::optional<Tip> tip;            // nothing: the ancestor that holds the last token
  };
  void end_generation(SlotIndex slot, const Successor& successor);
  // The first `tokens` rows of every tensor.
  void copy_rows(ChunkIndex from, ChunkIndex to, std::uint32_t tokens) const;
  [[nodiscard]] std::uint32_t kept_only_chunks() const;
  // The tip with which the slot's present generation began; empty where it began without chunks.
  [[nodiscard]] Tip base_tip(SlotIndex slot) const;
  void set_base_tip(SlotIndex slot, Tip tip);

  StoreGate& gate_;
  std::vector<Tip> base_tips_;             // by slot
  std::vector<std::uint64_t> identities_;  // by slot: slot_identity, of those that are live
};

template <class Visit>
void Shard::walk_least_recent(std::uint64_t now_ms, Visit visit) {
  for (auto entry = recency.oldest(); entry; entry = recency.after(*entry)) {
    const std::uint64_t used_ms = last_used_ms(entry->slot, now_ms);
    if (used_ms > entry->use.at_ms) {
      recency.touch(entry->slot, used_ms);  // it comes again, at its true place
      continue;
    }
    if (!visit(entry->slot)) return;
  }
}

}  // namespace hotkv::core
