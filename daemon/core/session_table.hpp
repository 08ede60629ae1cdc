#pragma once
// The slots of a shard and the index that finds them.

#include <cstdint>
#include <optional>
#include <vector>

#include <hotkv/types.hpp>

#include "daemon/core/shard_tables.hpp"
#include "daemon/core/store_gate.hpp"

namespace hotkv::core {

// Which slots are free is private and rebuilt; the index lies in the tables for the clients. A slot
// is in the index exactly while its head is not free (between operations).
class SessionTable {
 public:
  SessionTable(const ShardTables& tables, StoreGate& gate);

  [[nodiscard]] std::optional<SlotIndex> find(const SessionId& session) const;
  // False where the index cannot take this id within its bounded probe length.
  [[nodiscard]] bool has_index_room(const SessionId& session) const;
  void insert(const SessionId& session, SlotIndex slot);
  void remove(const SessionId& session, SlotIndex slot);

  // A slot whose head is free, lowest first; nothing if all are in use or worn out.
  [[nodiscard]] std::optional<SlotIndex> take_free();
  void give_back(SlotIndex slot);

  [[nodiscard]] std::uint32_t live_count() const { return live_count_; }
  // Slots from here on have never been taken. Nobody need look at them: reading a hole of the
  // tables would allocate memory.
  [[nodiscard]] std::uint32_t used_end() const { return never_used_; }

  // Recounts free slots and writes the index anew from the slots' heads. Returns live slots that
  // the bounded probes have no room for (only ids chosen to collide get there): not indexed, not
  // counted.
  [[nodiscard]] std::vector<SlotIndex> rebuild();

 private:
  [[nodiscard]] std::uint64_t hash(const SessionId& session) const;
  [[nodiscard]] std::uint32_t home_of_entry(std::uint64_t entry) const;

  const ShardTables& tables_;
  StoreGate& gate_;
  std::uint32_t mask_;
  std::uint32_t never_used_ = 0;     // slots from here on have never been taken
  std::vector<SlotIndex> returned_;  // free slots below never_used_
  std::uint32_t live_count_ = 0;
};

}  // namespace hotkv::core
