#pragma once
// Brings a shard's files, left by a daemon that died at any instruction, back to a state between two
// operations, and builds everything private anew.

#include <cstdint>
#include <functional>

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
//   a context that makes no sense -> retired, lost_in_restart
class Rebuild {
 public:
  Rebuild(Shard& shard, StoreGate& gate, std::uint64_t now_ms)
      : shard_(shard), gate_(gate), now_ms_(now_ms) {}

  // `provisioned` says which extents have memory.
  void run(const std::function<bool(ExtentIndex)>& provisioned);

 private:
  void settle_slot(SlotIndex slot);
  void settle_live_slot(SlotIndex slot);
  // Ends the generation of a slot whose chain may be nonsense, without counting anything.
  void free_slot(SlotIndex slot, bool keep_chain);
  void lose(SlotIndex slot, MissReason reason);
  void lose_duplicates();
  void settle_kept_heads();
  void settle_holder(SlotIndex slot);

  Shard& shard_;
  StoreGate& gate_;
  std::uint64_t now_ms_;
};

}  // namespace hotkv::core
