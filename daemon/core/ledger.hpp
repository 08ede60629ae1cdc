#pragma once
// The ledger: for every remembered session its highest epoch and how its last context ended.

#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <set>
#include <utility>
#include <vector>

#include <hotkv/cache_miss.hpp>
#include <hotkv/types.hpp>

#include "daemon/core/shard_tables.hpp"
#include "daemon/core/store_gate.hpp"

namespace hotkv::core {

// Holds at least every live session and forgets the longest ended one when it is full. The records
// lie in the tables; the map from session to record is private and rebuilt.
class Ledger {
 public:
  struct Entry {
    Epoch epoch;                     // highest seen
    std::optional<MissReason> fate;  // nothing: a context lives, or its opening never completed
    TokenCount last_length;          // with a fate
    std::uint64_t ended_ms = 0;      // with a fate
  };

  Ledger(const ShardTables& tables, StoreGate& gate) : tables_(tables), gate_(gate) {}

  [[nodiscard]] std::optional<Entry> find(const SessionId& session) const;

  // Remembers the session with at least this epoch; the one store of the epoch is the moment from
  // which lower epochs are stale. Returns when the session forgotten for it had ended, if one was.
  std::optional<std::uint64_t> remember(const SessionId& session, Epoch epoch,
                                        std::uint64_t now_ms);
  // The session's context ended. The fate is stored last.
  void bury(const SessionId& session, MissReason fate, TokenCount last_length,
            std::uint64_t now_ms);
  // The session has a live context (again).
  void revive(const SessionId& session);
  // It is not forgotten before it is buried or revived: a rebuild has yet to settle which.
  void protect(const SessionId& session);

  // Sessions without a live context.
  [[nodiscard]] std::uint32_t ended_count() const {
    return static_cast<std::uint32_t>(ended_.size());
  }
  [[nodiscard]] std::uint32_t count() const { return static_cast<std::uint32_t>(records_.size()); }

  // Builds the private map from the records; all count as ended until revived. Of two records of
  // one session, which only damage makes, the one of a live context is kept, or the first.
  using LiveEpoch = std::function<std::optional<Epoch>(const SessionId&)>;
  void rebuild(const LiveEpoch& live_epoch = [](const SessionId&) -> std::optional<Epoch> {
    return std::nullopt;
  });

 private:
  using RecordIndex = std::uint32_t;
  [[nodiscard]] LedgerRecord& record(RecordIndex index) const { return tables_.ledger()[index]; }
  [[nodiscard]] RecordIndex take_record(std::optional<std::uint64_t>& forgotten);
  void set_ended(RecordIndex index, bool ended);
  void drop(RecordIndex index);

  const ShardTables& tables_;
  StoreGate& gate_;
  std::map<SessionId, RecordIndex> records_;  // ordered: ids cannot be chosen to collide
  std::set<std::pair<std::uint64_t, RecordIndex>> ended_;  // by when they ended
  std::vector<RecordIndex> unused_;                        // below never_used_
  RecordIndex never_used_ = 0;
};

}  // namespace hotkv::core
