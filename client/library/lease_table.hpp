#pragma once
// Who in this process holds which lease, so that the last one gives it back.

#include <cstdint>
#include <map>
#include <mutex>
#include <optional>
#include <utility>

#include <hotkv/types.hpp>

#include "client/library/connection.hpp"
#include "client/library/fork_guard.hpp"
#include "client/library/position.hpp"
#include "client/library/session_index.hpp"

namespace hotkv::client {

class Lease;

// To the daemon the lease is this client's, however many objects stand for it here: opening a
// context again gives the same lease. If each object closed it, `context = client.open(…)` over an
// older object of the same context would give back the lease it has just taken.
//
// Thread-safe. A CLOSE leaves in the order in which this table decides, so it cannot overtake, or
// be overtaken by, an OPEN of the same context.
class LeaseTable {
 public:
  explicit LeaseTable(Connection& connection) : connection_(connection) {}

  // A share in the lease of (session, epoch); take it before asking for it.
  [[nodiscard]] Lease share(const SessionId& session, Epoch epoch);

  // After the connection has come back to the same memory: the tables say which leases are booked
  // to this client's `page`. Those that nobody here shares are given back, the others are taken
  // note of with the generation they have now. On the watching thread.
  //
  // That covers whatever was under way when the connection ended, without a record of it: a CLOSE
  // that was sent and not done, or never sent; an OPEN that was done and not answered; a change of
  // generation that its caller was not told. It is right at any time, for a CLOSE is sent only
  // where no share is, and the daemon does it only while this client holds the lease in this
  // generation:
  // - Who asks for the lease takes a share first, so no OPEN under way can lose what it gets.
  // - Decided and sent under one mutex with share(), the CLOSE leaves before a later OPEN does.
  // - If it is the second CLOSE of a lease, the first one has ended the generation.
  void settle(const SessionIndex& tables, PageIndex page);

 private:
  friend class Lease;
  using Key = std::pair<SessionId, Epoch>;
  // Where a lease stands: enough to give it back.
  struct Standing {
    SlotIndex slot;
    Generation generation;
  };
  struct Entry {
    std::uint32_t shares = 0;
    std::optional<Standing> standing;  // nothing until the daemon gave the lease
  };

  void stands_at(const Key& key, const Standing& standing);
  static void note(Entry& entry, const Standing& standing);
  void ended(const Key& key);
  // The CLOSE to send, if this was the last share of a lease that is held.
  [[nodiscard]] std::optional<Request> let_go(const Key& key);  // mutex_ is held

  Connection& connection_;
  const ForkGuard guard_;
  std::mutex mutex_;
  std::map<Key, Entry> entries_;  // guarded by mutex_
};

// One share. Move-only; the destructor gives it back without waiting. In a forked child it does
// nothing.
class Lease {
 public:
  Lease(Lease&& other) noexcept
      : table_(std::exchange(other.table_, nullptr)), key_(std::move(other.key_)) {}
  Lease& operator=(Lease&&) = delete;
  ~Lease();

  [[nodiscard]] const SessionId& session() const { return key_.first; }
  [[nodiscard]] Epoch epoch() const { return key_.second; }

  // The daemon gave the lease, or moved it to another generation.
  void stands_at(const Position& position) {
    table_->stands_at(key_, {position.slot, position.generation});
  }
  // The context is no more: there is nothing to give back.
  void ended() { table_->ended(key_); }
  // Gives the share back now. The CLOSE under way, if it was the last.
  [[nodiscard]] std::optional<Connection::Pending> close();

 private:
  friend class LeaseTable;
  Lease(LeaseTable& table, LeaseTable::Key key) : table_(&table), key_(std::move(key)) {}
  LeaseTable* table_;  // null: nothing to give back
  LeaseTable::Key key_;
};

}  // namespace hotkv::client
