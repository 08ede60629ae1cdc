#pragma once
// Grants: room for tokens to come, at once where memory is there, later where it has to be fetched.

#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <utility>
#include <variant>
#include <vector>

#include "daemon/core/core.hpp"
#include "daemon/core/reclaim.hpp"
#include "daemon/core/shards.hpp"

namespace hotkv::core {

// Which clients to ask after.
enum class Reaped { disconnected, all };

// An append that finds too little memory books what there is, orders the rest, and waits; what it
// booked is nobody else's meanwhile. Its answer is made when the order is done, and then by the
// same checks as at first: a context that was cut off or ended in between is refused, and the
// chunks are free. A context has one order at a time: a further append joins it, or is refused if
// it wants more.
class Grants {
 public:
  using Answer = std::variant<Position, Refusal, Waiting>;

  // `reap` ends the claims of clients of a shard that are gone.
  Grants(const Limits& limits, Shards& shards, std::function<std::uint64_t()> now_ms,
         std::function<void(Shard&, Reaped)> reap);

  // The lease has been checked: the holder of `slot` wants tokens [0, up_to) writable.
  [[nodiscard]] Answer append(ClientId client, SlotIndex slot, TokenCount up_to);
  // Between the messages of clients: what was looked for in vain may be there by the next one.
  void end_message() { vain_.reset(); }
  // Forgets the waiting appends of a client that hung up.
  void drop_client(ClientId client);

  [[nodiscard]] std::vector<MemoryOrder> take_orders() { return std::exchange(new_orders_, {}); }
  void order_done(std::uint64_t order_id, const std::expected<void, Error>& result, bool punched);
  [[nodiscard]] std::vector<FinishedGrant> take_finished() { return std::exchange(finished_, {}); }

  // Orders under way.
  [[nodiscard]] std::uint32_t waiting_count() const {
    return static_cast<std::uint32_t>(orders_.size());
  }
  // Chunks that waiting appends have booked in a shard; they are neither free nor owned.
  [[nodiscard]] std::vector<ChunkIndex> booked(ShardId shard) const;
  [[nodiscard]] bool has_orders_for(ShardId shard) const;

 private:
  // An append that waits for an order.
  struct Waiter {
    std::uint64_t ticket;
    ClientId client;
    SlotIndex slot;
    SessionId session;
    Epoch epoch;
    Generation generation;
    TokenCount up_to;
  };
  struct Order {
    std::uint64_t id;
    ShardId shard;
    std::uint32_t owner_uid;
    std::vector<ChunkIndex> booked;
    std::vector<ExtentIndex> arrivals;
    std::vector<std::pair<ShardId, ExtentIndex>> departures;
    std::vector<Waiter> waiters;  // the first one placed it; empty once they hung up
  };

  // What it takes so that tokens [0, up_to) are writable, reckoned from one reading of the length.
  struct Plan {
    TokenCount up_to;
    TokenCount length;
    bool copies_tail = false;
    std::uint64_t chunks = 0;  // the copy included; 0: they are writable already
  };
  [[nodiscard]] static Plan plan(const Shard& shard, SlotIndex slot, TokenCount up_to);
  [[nodiscard]] std::optional<Error> refuse_if_hopeless(const Shard& shard, SlotIndex slot,
                                                        TokenCount up_to) const;
  [[nodiscard]] bool was_in_vain(const Shard& shard, SlotIndex keep, std::uint64_t chunks) const;
  // Evicts until the shard's supply suffices. The error if it cannot.
  [[nodiscard]] std::optional<Error> make_room(Shard& shard, SlotIndex keep, std::uint64_t chunks);
  [[nodiscard]] Error over_budget(const Shard& shard, SlotIndex slot, std::uint64_t chunks) const;
  // Carries the plan out with plan.chunks chunks from the back of `supply`.
  static Position apply(Shard& shard, SlotIndex slot, const Plan& plan,
                        std::vector<ChunkIndex>& supply);
  // The order that this context waits for already.
  [[nodiscard]] Order* order_of(ClientId client, SlotIndex slot, Generation generation);
  [[nodiscard]] std::optional<Error> refuse_if_queue_is_full(const Shard& shard,
                                                             SlotIndex slot) const;
  void place_order(Shard& shard, std::uint64_t chunks, Waiter waiter);
  // Takes what it needs out of `booked`.
  [[nodiscard]] Outcome<Position> finish(Shard& shard, const Waiter& waiter,
                                         std::vector<ChunkIndex>& booked,
                                         const std::expected<void, Error>& result);

  const Limits& limits_;
  Shards& shards_;
  std::function<std::uint64_t()> now_ms_;
  std::function<void(Shard&, Reaped)> reap_;
  Reclaim reclaim_;
  std::map<std::uint64_t, Order> orders_;
  std::vector<MemoryOrder> new_orders_;
  std::vector<FinishedGrant> finished_;
  std::uint64_t next_id_ = 1;  // of orders and tickets
  std::optional<std::uint64_t> last_reap_ms_;
  // The last search for victims of this message that found too little. A message of 256 hopeless
  // appends costs one search.
  struct Vain {
    ShardId shard;
    SlotIndex keep;  // the context it was for, never a victim of its own
    std::uint64_t chunks;
    std::uint64_t kept_chunks;  // of `keep`
  };
  std::optional<Vain> vain_;
};

// The error of an operation whose lease or generation is over.
[[nodiscard]] Error lease_lost(std::string operation, const SessionId& session, std::string cause);
// How messages name a session.
[[nodiscard]] std::string session_name(const SessionId& session);

}  // namespace hotkv::core
