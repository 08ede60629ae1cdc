#pragma once
// The core: all shards, their contexts and the budget, as one object with no surroundings.
//
// It knows no socket, system call, log or clock but the injected one: memory comes as spans, time
// as a function, liveness as an interface, and what has to be done to memory leaves as orders that
// somebody else carries out. One thread owns it; every method runs to its end and none blocks.
//
// How one control message is handled: any number of operations, then end_message(shard) once.

#include <cstdint>
#include <expected>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <variant>
#include <vector>

#include <hotkv/cache_miss.hpp>
#include <hotkv/error.hpp>
#include <hotkv/recipe.hpp>
#include <hotkv/types.hpp>

#include "daemon/core/limits.hpp"
#include "shared/geometry.hpp"
#include "shared/layout.hpp"

namespace hotkv::core {

class Shard;

// A shard's number in this core; never reused.
using ShardId = Strong<struct ShardIdTag, std::uint64_t>;

// What a shard is: the recipe's other fields must match on every attach and open.
struct ShardKey {
  std::uint32_t owner_uid = 0;
  std::string model_id;
  LayerRange layers;
  friend bool operator==(const ShardKey&, const ShardKey&) = default;
};

// One attached client: its page in its shard.
struct ClientId {
  ShardId shard;
  PageIndex page;
  friend auto operator<=>(const ClientId&, const ClientId&) = default;
};

// The three files of a shard, mapped read-write by the daemon (or plain memory in a test).
struct ShardMemory {
  std::span<std::byte> tables;
  std::span<std::byte> arena;
  std::span<std::byte> pages;
};

// Everything needed to make a shard's files before add_shard.
struct ShardPlan {
  std::uint32_t owner_uid;
  Recipe recipe;
  Geometry geometry;
  Capacities capacities;
  FileLayout layout;  // sizes of the files to make
};

// For a new shard's header; the core makes no random numbers and knows no files.
struct ShardIdentity {
  std::uint64_t boot_token;       // random, not 0
  std::uint64_t hash_key[2];      // random
  std::uint64_t arena_inode = 0;  // of the file that the arena is
  std::uint64_t pages_inode = 0;  // of the file that the pages are
};

// Says whether a client's mapping of its page still exists. Asked only on occasions that matter.
class PageLiveness {
 public:
  virtual ~PageLiveness() = default;
  [[nodiscard]] virtual bool is_alive(ClientId client) = 0;
};

// Where a context stands: what OPEN, APPEND and TRUNCATE answer.
struct Position {
  SlotIndex slot;
  Generation generation;
  Tip tip = Tip::free();
  TokenCount length;    // published
  TokenCount writable;  // tokens [length, writable) may be written in this generation
};

template <class T>
using Outcome = std::expected<T, Refusal>;

// An append that waits for memory; its answer comes from take_finished_grants().
struct Waiting {
  std::uint64_t ticket;
};
struct FinishedGrant {
  std::uint64_t ticket;
  Outcome<Position> outcome;
};

// Memory to give back to the kernel and to fetch from it, in this order. While an order is under
// way its extents are "in transit": they count as provisioned, and nobody uses them.
struct ExtentRange {
  ShardId shard;
  ByteOffset arena_offset;  // in the arena file
  std::uint64_t size_bytes;
};
struct MemoryOrder {
  std::uint64_t id;
  std::vector<ExtentRange> punch;
  std::vector<ExtentRange> provision;
};

struct Counters {
  std::uint64_t opens = 0;
  std::uint64_t appends = 0;  // granted at once, or waiting for memory
  std::uint64_t truncates = 0;
  std::uint64_t releases = 0;
  std::uint64_t tail_copies = 0;
  std::uint64_t takeovers = 0;
  std::uint64_t refusals[kErrorCodes] = {};  // operations answered with an error, by its code
  std::uint64_t ended[10] = {};              // contexts ended, by MissReason
  std::uint64_t misses[10] = {};             // misses explained, by MissReason
  std::uint64_t operations_missed[10] = {};  // other operations on contexts that are not there
  std::uint64_t hits_explained = 0;          // EXPLAINs that found the context there
  std::uint64_t forgotten_early = 0;         // tombstones dropped before tombstone_ttl
  std::uint64_t evictions_in_vain = 0;       // searches for victims that found too little

  void count(const Error& error) { ++refusals[static_cast<std::size_t>(error.code)]; }
  void count(const Refusal& refusal) {
    if (!refusal.is_miss()) return count(refusal.error());
    ++operations_missed[static_cast<std::size_t>(refusal.miss().reason)];
  }
};

// Bytes of provisioned extents: used + kept + free + in_transit = provisioned, always.
struct Account {
  std::uint64_t provisioned = 0;
  std::uint64_t used = 0;        // chunks of live contexts (and of waiting grants)
  std::uint64_t kept = 0;        // chunks that only kept heads own
  std::uint64_t free = 0;        // chunks nobody owns, and the tails of extents
  std::uint64_t in_transit = 0;  // extents on their way to or from the kernel
};

struct ContextInfo {
  ShardId shard;
  SessionId session;
  Epoch epoch;
  Generation generation;
  TokenCount length;
  TokenCount writable;
  std::uint32_t chunks;
  std::uint64_t idle_ms;
  std::optional<PageIndex> holder;
  std::uint32_t holder_pid;  // 0 = nobody or unknown
  bool pinned;
};

struct ShardInfo {
  ShardId id;
  ShardKey key;
  std::string recipe_text;
  Geometry geometry;
  std::uint64_t boot_token;
  std::uint32_t contexts;
  std::uint32_t clients;
  std::uint32_t kept_heads;
  std::uint32_t tombstones;
  Account account;
  Counters counters;
};

struct Status {
  Limits limits;
  Account account;  // over all shards
  std::uint32_t waiting_grants = 0;
  std::vector<ShardInfo> shards;
};

// What is known of a session in one shard.
struct Explanation {
  ShardId shard;
  ShardKey key;
  std::optional<ContextInfo> context;  // where it is live
  std::optional<CacheMiss> last;       // else: how its last context ended
};

// Called before each store to a shard's files; a test's way to kill the daemon between two stores.
using StoreProbe = std::function<void()>;

class Core {
 public:
  // `now_ms` is CLOCK_MONOTONIC in milliseconds. Both references outlive the core.
  Core(Limits limits, std::function<std::uint64_t()> now_ms, PageLiveness& liveness);
  ~Core();
  Core(const Core&) = delete;
  Core& operator=(const Core&) = delete;

  // ---- shards -----------------------------------------------------------------------------------

  [[nodiscard]] std::optional<ShardId> find_shard(const ShardKey& key) const;
  // Errors: too_many_shards (the daemon's bound or the owner's), invalid_argument (geometry: a
  // chunk that is too large, or not one fits). May drop shards that hold no context and no client:
  // their ids leave by take_dropped_shards().
  [[nodiscard]] std::expected<ShardPlan, Error> plan_shard(std::uint32_t owner_uid,
                                                           const Recipe& recipe);
  // Formats zeroed memory of the plan's sizes. The memory outlives the shard.
  ShardId add_shard(const ShardPlan& plan, ShardMemory memory, const ShardIdentity& identity);
  // Takes over memory that an earlier core left at any instruction: rebuilds what was private,
  // finishes what was half done, drops a context that makes no sense (lost_in_restart). Clients
  // keep their pins and leases until tick() finds out who is gone. Errors: shard_damaged,
  // unsupported_version, uncertified_architecture; then the memory is unchanged.
  [[nodiscard]] std::expected<ShardId, Error> adopt_shard(
      ShardMemory memory, std::span<const std::string> certified_architectures);
  // Parts of the arena that the account knows nothing of. The kernel may hold memory there all the
  // same: after an adoption what came too late for the last account or went too early, and at any
  // time what a client filled by reading holes. To be given back.
  [[nodiscard]] std::vector<ExtentRange> unaccounted_extents(ShardId shard) const;
  // Bytes of extents that have memory, are getting it or are giving it back.
  [[nodiscard]] std::uint64_t provisioned_bytes_of(ShardId shard) const;
  // Gives a shard up that has just been adopted; its memory is not touched.
  void forget_shard(ShardId shard);
  // What was adopted can be more than the limits of today allow: of contexts in a shard, of bytes
  // of an owner and of all. Ends least recently used contexts that nobody pins, and takes up to
  // `extents_max` idle extents out of the account: to be given back to the kernel at once. Again
  // later, as pins end; nothing where nothing is too much.
  [[nodiscard]] std::vector<ExtentRange> shrink_to_limits(std::size_t extents_max);
  // Memory that the kernel holds for files of an earlier daemon which no shard is made of. It
  // counts as in transit until this is called with less.
  void set_left_over_bytes(std::uint64_t bytes);
  [[nodiscard]] std::vector<ShardId> take_dropped_shards();
  // The recipe of a shard that exists.
  [[nodiscard]] const Recipe& recipe_of(ShardId shard) const;
  [[nodiscard]] std::uint64_t boot_token_of(ShardId shard) const;
  [[nodiscard]] FileLayout layout_of(ShardId shard) const;

  // ---- clients ----------------------------------------------------------------------------------

  struct PageGrant {
    ClientId client;
    std::uint64_t cookie;
  };
  // Errors: too_many_clients. `cookie` is random; `pid` is for people only.
  [[nodiscard]] std::expected<PageGrant, Error> attach(ShardId shard, Access access,
                                                       std::uint32_t pid, std::uint64_t cookie);
  // A client comes back to the page it has: its connection ended, or an adoption lies between; its
  // mapping never ended. It has its pins and leases as before. Call disconnected() first if the
  // core does not know yet that the earlier connection is over. Errors: shard_replaced (no such
  // page here, another cookie or access, or its mapping is gone).
  [[nodiscard]] std::expected<PageGrant, Error> come_back(ClientId client, Access access,
                                                          std::uint64_t cookie);
  // Whether the page is one that its client could come back to with this access and cookie.
  [[nodiscard]] bool is_page_of(ClientId client, Access access, std::uint64_t cookie) const;
  // The connection ended; the client may live on. Its waiting grants are dropped; pins and leases
  // stay until its mapping is gone, which is asked here at once and on later occasions again. Once.
  void disconnected(ClientId client);
  // Clients whose mapping turned out to be gone while their connection stands (an exec, with a
  // forked child that holds the socket): the connection is to be ended, then disconnected() called.
  [[nodiscard]] std::vector<ClientId> take_gone_clients();
  // Leases of clients that are gone end some hundred at a time, so that others have their turns
  // between. Whoever wants one of the others gets it all the same.
  [[nodiscard]] bool has_leases_to_end() const;
  void end_some_leases();
  [[nodiscard]] Access access_of(ClientId client) const;

  // ---- operations -------------------------------------------------------------------------------

  [[nodiscard]] Outcome<Position> open(ClientId client, const SessionId& session, Epoch epoch,
                                       const Fingerprint& fingerprint);
  [[nodiscard]] std::variant<Position, Refusal, Waiting> append(ClientId client,
                                                                const SessionId& session,
                                                                Epoch epoch, Generation generation,
                                                                TokenCount up_to);
  [[nodiscard]] Outcome<Position> truncate(ClientId client, const SessionId& session, Epoch epoch,
                                           Generation generation, TokenCount from, TokenCount to);
  [[nodiscard]] Outcome<void> close(ClientId client, const SessionId& session, Epoch epoch,
                                    Generation generation);
  // Generation{0}: whatever it is. Else it must stand at that generation of that slot: a name that
  // was released and opened again may be in another one, whose generations are its own.
  [[nodiscard]] Outcome<void> release(ClientId client, const SessionId& session, Epoch epoch,
                                      Generation generation, SlotIndex slot_of_generation);
  // Why a resolve missed; a Position where it is there after all. Counted as a miss.
  [[nodiscard]] Outcome<Position> explain(ClientId client, const SessionId& session, Epoch epoch,
                                          const Fingerprint& fingerprint, TokenCount expected,
                                          LengthMatch match);
  // Lets go of kept heads that nobody pins any more. Once after the operations of a message.
  void end_message(ShardId shard);

  // Expires contexts, asks after clients that hung up, sweeps kept heads. Call about once a second.
  void tick();

  // ---- memory -----------------------------------------------------------------------------------

  [[nodiscard]] std::vector<MemoryOrder> take_memory_orders();
  // The order was carried out, or (error) nothing of it is in effect any more but its punches where
  // `punched`. An order that was carried out has punched.
  void memory_order_done(std::uint64_t order_id, std::expected<void, Error> result, bool punched);
  [[nodiscard]] std::vector<FinishedGrant> take_finished_grants();

  // ---- looking (changes nothing: neither recency nor any counter)
  // --------------------------------

  [[nodiscard]] Status status() const;
  [[nodiscard]] std::vector<ContextInfo> contexts() const;
  [[nodiscard]] std::vector<Explanation> why(const SessionId& session) const;
  // Walks every table and chain; the first broken invariant in words, or nothing.
  [[nodiscard]] std::optional<std::string> verify() const;
  [[nodiscard]] std::optional<std::string> verify(ShardId shard) const;

  void set_store_probe(StoreProbe probe);

 private:
  class Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace hotkv::core
