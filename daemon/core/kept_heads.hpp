#pragma once
// Old heads that still own their chains because somebody may have them pinned.

#include <cstdint>
#include <functional>
#include <vector>

#include "daemon/core/shard_tables.hpp"
#include "daemon/core/store_gate.hpp"

namespace hotkv::core {

struct KeptHead {
  SlotIndex slot;
  HeadWord head;
};

class KeptHeads {
 public:
  KeptHeads(const ShardTables& tables, StoreGate& gate) : tables_(tables), gate_(gate) {}

  [[nodiscard]] std::uint32_t count() const { return static_cast<std::uint32_t>(records_.size()); }
  // False: no record is unused; let go of some first.
  [[nodiscard]] bool has_room() const;
  // The record is whole before it counts: `slot` is stored last. Only if has_room().
  void keep(SlotIndex slot, HeadWord head);
  // Drops every record that `is_over` says so of, and calls `let_go` for it after its store.
  void drop_if(const std::function<bool(const KeptHead&)>& is_over,
               const std::function<void(const KeptHead&)>& let_go);
  [[nodiscard]] std::vector<KeptHead> all() const;

  // Finds the records in use again.
  void rebuild();

 private:
  [[nodiscard]] KeptHead read(std::uint32_t record) const;

  const ShardTables& tables_;
  StoreGate& gate_;
  std::vector<std::uint32_t> records_;  // in use
  std::vector<std::uint32_t> unused_;   // below never_used_
  std::uint32_t never_used_ = 0;
};

}  // namespace hotkv::core
