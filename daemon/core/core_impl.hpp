#pragma once
// The inside of the core, shared by core.cpp (operations), core_shards.cpp (making and adopting)
// and core_look.cpp (looking).

#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "daemon/core/core.hpp"
#include "daemon/core/grants.hpp"
#include "daemon/core/reclaim.hpp"
#include "daemon/core/shards.hpp"
#include "daemon/core/store_gate.hpp"

namespace hotkv::core {

// Contexts that one shard expires in one tick; the rest comes a second later. Bounds a turn's work.
inline constexpr std::size_t kExpirationsPerTickMax = 4096;
// Leases of clients that are gone which end in one turn; the rest ends in turns of its own.
inline constexpr std::size_t kLeasesAtOnce = 16;

class Core::Impl {
 public:
  Impl(Limits limits, std::function<std::uint64_t()> now_ms, PageLiveness& liveness);

  [[nodiscard]] static std::string describe(const Shard& shard);
  // Counts a refusal.
  [[nodiscard]] std::unexpected<Refusal> refuse(Shard& shard, Error error);
  // Counts a miss of an operation, and says what became of the context.
  [[nodiscard]] std::unexpected<Refusal> refuse_absent(Shard& shard, const SessionId& session,
                                                       Epoch epoch);
  [[nodiscard]] std::unexpected<Refusal> refuse_exhausted(const char* operation, Shard& shard,
                                                          SlotIndex slot);
  [[nodiscard]] std::unexpected<Refusal> refuse_collision(Shard& shard, const SessionId& session);
  // The error where the client's mapping is known to be gone: it can hold nothing any more.
  [[nodiscard]] std::optional<Error> check_claims(const char* operation, const Shard& shard,
                                                  PageIndex page, const SessionId& session) const;
  [[nodiscard]] static std::optional<Error> check_recipe(const char* operation, const Shard& shard,
                                                         const Fingerprint& fingerprint);
  // The slot of a context that `page` holds in this generation.
  [[nodiscard]] Outcome<SlotIndex> held_slot(const char* operation, Shard& shard, PageIndex page,
                                             const SessionId& session, Epoch epoch,
                                             Generation generation);
  // Lives, was connected to the daemon before this one, and has had no time to come back.
  [[nodiscard]] bool is_awaited(const Shard& shard, PageIndex page) const;
  [[nodiscard]] Outcome<Position> take_lease(Shard& shard, PageIndex page, SlotIndex slot);
  [[nodiscard]] Outcome<Position> make_context(Shard& shard, PageIndex page,
                                               const SessionId& session, Epoch epoch,
                                               std::optional<SlotIndex> superseded);
  // Evicts until one more context is below the session cap.
  [[nodiscard]] std::optional<Error> make_slot_room(Shard& shard, const SessionId& session);
  // The client's mapping is gone, whether or not its connection is. Leases that are too many for
  // this turn are left to `ending`.
  void end_claims(Shard& shard, PageIndex page, std::size_t& leases_left);
  [[nodiscard]] bool is_ending(const Shard& shard, PageIndex page) const;
  // Asks after clients of the shard and ends the claims of those that are gone.
  void reap(Shard& shard, Reaped whom, std::size_t& leases_left);
  // All of them: somebody needs what they have.
  void reap(Shard& shard, Reaped whom = Reaped::all);
  void expire(Shard& shard);
  // Drops a shard without contexts and clients, of this owner if one is given.
  bool drop_empty_shard(std::optional<std::uint32_t> owner_uid);
  // Bytes above the bound of an owner, or of all; negative below it.
  [[nodiscard]] std::int64_t excess(std::optional<std::uint32_t> owner) const;
  void shrink(std::optional<std::uint32_t> owner, std::size_t extents_max,
              std::vector<ExtentRange>& ranges);
  [[nodiscard]] ContextInfo context_info(const Shard& shard, SlotIndex slot,
                                         const PinSet& pins) const;

  Limits limits;
  std::function<std::uint64_t()> now_ms;
  PageLiveness& liveness;
  StoreGate gate;
  Shards shards;
  Grants grants;
  Reclaim reclaim;
  std::vector<ShardId> dropped;
  std::vector<ClientId> gone;
  std::vector<ClientId> ending;  // gone as well, and some of their leases are not ended yet
  std::uint64_t next_shard_id = 1;
  std::uint64_t adopted_ms = 0;  // the last adoption
  // What an adoption brought above the budget and pins or left-over files hold there; see
  // Core::shrink_to_limits. Nothing that this core does adds to it.
  std::int64_t tolerated_excess = 0;
};

}  // namespace hotkv::core
