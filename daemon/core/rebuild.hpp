#pragma once
// Brings a shard's files, left by a daemon that died at any instruction, back to a state between
// two operations, and builds everything private anew.

#include <cstdint>
#include <functional>
#include <map>
#include <set>
#include <utility>
#include <vector>

#include <hotkv/types.hpp>

#include "daemon/core/shard.hpp"

namespace hotkv::core {

// Idempotent, and may itself be killed at any store: the next one begins again.
//
//   state opening               -> the context never was; its slot is free
//   state retiring(reason)      -> the rest of retire() is done
//   length one generation ahead -> the rest of end_generation() is done
//   a kept head that is current -> dropped: its generation never ended
//   an epoch below the ledger's -> superseded
//   live, and its fate is stored -> ended with that fate
//   what makes no sense         -> retired, lost_in_restart: a session or an epoch that the ledger
//                                  does not know, a slot, a head or a chain without its seal
class Rebuild {
 public:
  Rebuild(Shard& shard, StoreGate& gate, std::uint64_t now_ms)
      : shard_(shard), gate_(gate), now_ms_(now_ms) {}

  void run();

 private:
  // Of all slots: the session table does not know yet which were ever used.
  [[nodiscard]] std::vector<SlotIndex> live_slots() const {
    return shard_.live_slots_below(shard_.tables.capacities().slot_count);
  }
  // Of each session the slot that bears a seal with its name.
  void find_owners();
  // Live sessions first, so that none of them is forgotten to remember another; and what fate is
  // stored of them, before any is lost.
  void protect_owners();
  void settle_slot(SlotIndex slot);
  void settle_live_slot(SlotIndex slot);
  // Ends the generation of a slot whose chain may be nonsense, without counting anything.
  void free_slot(SlotIndex slot, bool keep_chain);
  // Buries the session that the slot names, and ends the slot.
  void lose(SlotIndex slot, MissReason reason);
  void end(SlotIndex slot, MissReason reason);
  void settle_kept_heads();
  void settle_holder(SlotIndex slot);
  void settle_base_tip(SlotIndex slot);
  // Keeps the head unless it is kept already: somebody may have it pinned.
  void keep(SlotIndex slot, HeadWord head);

  Shard& shard_;
  StoreGate& gate_;
  std::uint64_t now_ms_;
  ChunkPool::SoundChunks sound_;
  std::set<std::pair<std::uint32_t, std::uint64_t>> kept_;  // slot, head word
  std::map<SessionId, SlotIndex> owners_;
  std::map<SessionId, MissReason> fates_;
};

}  // namespace hotkv::core
