#include "daemon/core/grants.hpp"

#include <algorithm>
#include <string>
#include <utility>

#include "shared/check.hpp"

namespace hotkv::core {
namespace {

// A reader can pin a victim between the choice and the end of it; then there is less than was
// reckoned, and the choice is made again. More than this is not misfortune but a pinned shard.
constexpr int kReclaimAttempts = 3;
// Need of memory is an occasion to ask after clients, which costs a system call each. Those that
// hung up are few and are asked after every time; those that did not can be gone only by an exec.
constexpr std::uint64_t kReapIntervalMs = 100;
// Appends of one context that wait for one order: what threads of a worker would do at most.
constexpr std::size_t kWaitersPerOrderMax = 16;

std::uint64_t chunks_above(std::uint64_t tokens, std::uint64_t chunk_tokens) {
  return (tokens + chunk_tokens - 1) / chunk_tokens;
}

}  // namespace

std::string session_name(const SessionId& session) {
  return "session \"" + session.escaped() + '"';
}

Error lease_lost(std::string operation, const SessionId& session, std::string cause) {
  return {ErrorCode::lease_lost, std::move(operation), session_name(session), std::move(cause)};
}

Grants::Grants(const Limits& limits, Shards& shards, std::function<std::uint64_t()> now_ms,
               std::function<void(Shard&, Reaped)> reap)
    : limits_(limits),
      shards_(shards),
      now_ms_(std::move(now_ms)),
      reap_(std::move(reap)),
      reclaim_(limits, shards) {}

Grants::Plan Grants::plan(const Shard& shard, SlotIndex slot, TokenCount up_to) {
  Plan plan{up_to, shard.published(slot), false, 0};
  plan.copies_tail = shard.needs_tail_copy(slot, plan.length);
  const std::uint64_t chunk_tokens = shard.tables.geometry().chunk_tokens;
  // With a copy the chain ends at the chunk that holds the last published token.
  const std::uint64_t capacity =
      plan.copies_tail ? chunks_above(plan.length.value(), chunk_tokens) * chunk_tokens
                       : shard.chunks.capacity(shard.head(slot).tip).value();
  const std::uint64_t writable = plan.copies_tail ? plan.length.value() : capacity;
  if (up_to.value() <= writable) {
    plan.copies_tail = false;
    return plan;
  }
  plan.chunks = plan.copies_tail ? 1 : 0;
  if (up_to.value() > capacity) plan.chunks += chunks_above(up_to.value() - capacity, chunk_tokens);
  return plan;
}

Error Grants::over_budget(const Shard& shard, SlotIndex slot, std::uint64_t chunks) const {
  const std::uint64_t stride = shard.tables.geometry().chunk_stride_bytes;
  const Supply supply = reclaim_.supply_for(shard);
  const std::int64_t room = std::max<std::int64_t>(
      0, std::min(supply.room + supply.idle, supply.owner_room + supply.owner_idle));
  const std::uint64_t free = supply.free_chunks * stride + static_cast<std::uint64_t>(room);
  const std::uint64_t needed = chunks * stride;
  return {ErrorCode::budget_exceeded, "append", session_name(shard.session(slot)),
          "needed " + std::to_string(needed) + " bytes, free " + std::to_string(free) +
              ", in use " +
              std::to_string(std::max<std::int64_t>(
                  shards_.provisioned_bytes() -
                      static_cast<std::int64_t>(supply.free_chunks * stride) - supply.idle,
                  0)) +
              ", budget " + std::to_string(limits_.max_bytes)};
}

std::optional<Error> Grants::refuse_if_hopeless(const Shard& shard, SlotIndex slot,
                                                TokenCount up_to) const {
  const Geometry& g = shard.tables.geometry();
  const std::uint64_t chunks = g.chunks_for(up_to);
  const std::uint64_t bytes =
      (chunks + g.chunks_per_extent - 1) / g.chunks_per_extent * g.extent_bytes;
  const std::uint64_t bound = limits_.max_bytes_per_owner == 0
                                  ? limits_.max_bytes
                                  : std::min(limits_.max_bytes, limits_.max_bytes_per_owner);
  if (bytes <= bound && chunks <= g.chunk_count) return std::nullopt;
  return over_budget(shard, slot, chunks);
}

// A search that found too little tells of other needs, too: what it could not free cannot be freed
// for a larger one either, but for the chunks of the context that was not to be touched then. Pins
// that ended since are seen by the next message.
bool Grants::was_in_vain(const Shard& shard, SlotIndex keep, std::uint64_t chunks) const {
  if (!vain_ || vain_->shard != shard.id) return false;
  return chunks >= vain_->chunks + (keep == vain_->keep ? 0 : vain_->kept_chunks);
}

std::optional<Error> Grants::make_room(Shard& shard, SlotIndex keep, std::uint64_t chunks) {
  if (Reclaim::suffices(shard, chunks, reclaim_.supply_for(shard))) return std::nullopt;
  if (was_in_vain(shard, keep, chunks)) return over_budget(shard, keep, chunks);
  const std::uint64_t now = now_ms_();
  const bool asks_all = !last_reap_ms_ || now - *last_reap_ms_ >= kReapIntervalMs;
  if (asks_all) last_reap_ms_ = now;
  for (const auto& [id, each] : shards_.map()) {
    reap_(*each, asks_all ? Reaped::all : Reaped::disconnected);
    each->sweep();
  }
  for (int attempt = 0; attempt < kReclaimAttempts; ++attempt) {
    if (Reclaim::suffices(shard, chunks, reclaim_.supply_for(shard))) return std::nullopt;
    const auto victims = reclaim_.choose_victims(shard, chunks, keep, now_ms_());
    if (!victims) break;
    for (const Victim& victim : *victims) {
      shards_.at(victim.shard).retire(victim.slot, MissReason::evicted_lru, now_ms_());
    }
    for (const auto& [id, each] : shards_.map()) each->sweep();
  }
  if (Reclaim::suffices(shard, chunks, reclaim_.supply_for(shard))) return std::nullopt;
  ++shard.counters.evictions_in_vain;
  const Geometry& g = shard.tables.geometry();
  vain_ = {shard.id, keep, chunks,
           shard.chunks.capacity(shard.head(keep).tip).value() / g.chunk_tokens};
  return over_budget(shard, keep, chunks);
}

Position Grants::apply(Shard& shard, SlotIndex slot, const Plan& plan,
                       std::vector<ChunkIndex>& supply) {
  const auto next = [&supply] {
    HOTKV_CHECK(!supply.empty(), "a grant reckoned with too few chunks");
    const ChunkIndex chunk = supply.back();
    supply.pop_back();
    return chunk;
  };
  if (plan.copies_tail) shard.copy_tail(slot, plan.length, next());
  while (plan.up_to > shard.chunks.capacity(shard.head(slot).tip)) shard.link(slot, next());
  return shard.position(slot);
}

Grants::Answer Grants::append(ClientId client, SlotIndex slot, TokenCount up_to) {
  Shard& shard = shards_.at(client.shard);
  if (up_to.value() > kContextTokensMax) {
    return Refusal(Error{ErrorCode::invalid_argument, "append", session_name(shard.session(slot)),
                         "a context holds at most " + std::to_string(kContextTokensMax) +
                             " tokens, asked for " + std::to_string(up_to.value())});
  }
  if (auto error = refuse_if_hopeless(shard, slot, up_to)) return Refusal(std::move(*error));
  const Plan planned = plan(shard, slot, up_to);
  if (planned.chunks == 0) return shard.position(slot);
  if (planned.copies_tail && !shard.has_generations_left(slot)) {
    return Refusal(Error{ErrorCode::generations_exhausted, "append",
                         session_name(shard.session(slot)), "open a higher epoch"});
  }
  const Generation generation = shard.head(slot).generation;
  Waiter waiter{next_id_, client, slot, shard.session(slot), shard.epoch(slot), generation, up_to};
  if (Order* order = order_of(client, slot, generation)) {
    if (up_to > order->waiters.front().up_to) {
      return Refusal(Error{ErrorCode::too_many_waiting, "append", session_name(waiter.session),
                           "an append of this context to " +
                               std::to_string(order->waiters.front().up_to.value()) +
                               " tokens waits for memory already"});
    }
    if (order->waiters.size() >= kWaitersPerOrderMax) {
      return Refusal(Error{ErrorCode::too_many_waiting, "append", session_name(waiter.session),
                           std::to_string(order->waiters.size()) +
                               " appends of this context wait for memory already"});
    }
    order->waiters.push_back(std::move(waiter));
    return Waiting{next_id_++};
  }
  // Before anybody is evicted for an append that then could not wait.
  if (shard.chunks.free_count() < planned.chunks) {
    if (auto error = refuse_if_queue_is_full(shard, slot)) return Refusal(std::move(*error));
  }
  if (auto error = make_room(shard, slot, planned.chunks)) return Refusal(std::move(*error));
  // That asks after clients, and this one can be gone since it asked: then its lease was ended and
  // what it had been granted is free, which the plan knows nothing of.
  if (shard.holder(slot) != client.page || shard.head(slot).generation != generation) {
    return Refusal(lease_lost("append", waiter.session, "its holder is gone"));
  }
  if (shard.chunks.free_count() >= planned.chunks) {
    std::vector<ChunkIndex> chunks;
    for (std::uint64_t i = 0; i < planned.chunks; ++i) chunks.push_back(shard.chunks.take());
    std::ranges::reverse(chunks);  // apply() takes from the back: lowest chunk first
    return apply(shard, slot, planned, chunks);
  }
  place_order(shard, planned.chunks, std::move(waiter));
  return Waiting{next_id_++};
}

Grants::Order* Grants::order_of(ClientId client, SlotIndex slot, Generation generation) {
  for (auto& [id, order] : orders_) {
    if (order.waiters.empty()) continue;
    const Waiter& first = order.waiters.front();
    if (first.client == client && first.slot == slot && first.generation == generation) {
      return &order;
    }
  }
  return nullptr;
}

std::optional<Error> Grants::refuse_if_queue_is_full(const Shard& shard, SlotIndex slot) const {
  const auto of_owner = std::ranges::count_if(
      orders_, [&](const auto& entry) { return entry.second.owner_uid == shard.key.owner_uid; });
  // Half the queue is one owner's at most, so that no owner can make all others be refused.
  const std::uint32_t owner_max = std::max(limits_.waiting_grants_max / 2, 1u);
  if (orders_.size() < limits_.waiting_grants_max && std::cmp_less(of_owner, owner_max)) {
    return std::nullopt;
  }
  return Error{ErrorCode::too_many_waiting, "append", session_name(shard.session(slot)),
               std::to_string(orders_.size()) + " appends wait for memory already, " +
                   std::to_string(of_owner) + " of this owner"};
}

void Grants::place_order(Shard& shard, std::uint64_t chunks, Waiter waiter) {
  Order order{next_id_, shard.id, shard.key.owner_uid, {}, {}, {}, {}};
  order.waiters.push_back(std::move(waiter));
  while (order.booked.size() < chunks && shard.chunks.free_count() > 0) {
    order.booked.push_back(shard.chunks.take());
  }
  const std::uint64_t missing = chunks - order.booked.size();
  order.departures = reclaim_.begin_departures(shard, missing);
  const Geometry& g = shard.tables.geometry();
  for (std::uint64_t coming = 0; coming < missing; coming += g.chunks_per_extent) {
    order.arrivals.push_back(shard.chunks.begin_arrival());
  }
  MemoryOrder work{order.id, {}, {}};
  const auto range = [](const Shard& of, ExtentIndex extent) {
    const Geometry& geometry = of.tables.geometry();
    return ExtentRange{
        of.id,
        ByteOffset{of.tables.first_chunk_offset().value() + geometry.extent_offset(extent).value()},
        geometry.extent_bytes};
  };
  Shards::Surplus surplus;
  for (const auto& [id, extent] : order.departures) {
    const Shard& from = shards_.at(id);
    work.punch.push_back(range(from, extent));
    const auto bytes = static_cast<std::int64_t>(from.tables.geometry().extent_bytes);
    surplus.total += bytes;
    surplus.of_owner[from.key.owner_uid] += bytes;
  }
  for (const ExtentIndex extent : order.arrivals) work.provision.push_back(range(shard, extent));
  const auto arriving = static_cast<std::int64_t>(order.arrivals.size() * g.extent_bytes);
  surplus.total = std::max<std::int64_t>(surplus.total - arriving, 0);
  std::int64_t& own = surplus.of_owner[shard.key.owner_uid];
  own = std::max<std::int64_t>(own - arriving, 0);
  shards_.hold_back(order.id, std::move(surplus));
  new_orders_.push_back(std::move(work));
  orders_.emplace(order.id, std::move(order));
}

void Grants::order_done(std::uint64_t order_id, const std::expected<void, Error>& result,
                        bool punched) {
  const auto found = orders_.find(order_id);
  if (found == orders_.end()) return;
  Order order = std::move(found->second);
  orders_.erase(found);
  shards_.let_go(order_id);
  for (const auto& [id, extent] : order.departures) {
    shards_.at(id).chunks.end_departure(extent, punched || result.has_value());
  }
  Shard& shard = shards_.at(order.shard);
  for (const ExtentIndex extent : order.arrivals) {
    shard.chunks.end_arrival(extent, result.has_value());
    if (!result) continue;
    // All of an extent's chunks are booked first; what the appends do not need is given back.
    for (std::uint32_t i = 0; i < shard.tables.geometry().chunks_per_extent; ++i) {
      order.booked.push_back(shard.chunks.take_from(extent, i));
    }
  }
  std::ranges::sort(order.booked, std::ranges::greater{});
  for (const Waiter& waiter : order.waiters) {
    auto outcome = finish(shard, waiter, order.booked, result);
    if (!outcome) shard.counters.count(outcome.error());
    finished_.push_back({waiter.ticket, std::move(outcome)});
  }
  for (const ChunkIndex chunk : order.booked) shard.chunks.give_back(chunk);
}

Outcome<Position> Grants::finish(Shard& shard, const Waiter& waiter,
                                 std::vector<ChunkIndex>& booked,
                                 const std::expected<void, Error>& result) {
  const auto slot = shard.find(waiter.session, waiter.epoch);
  if (!slot) {
    return std::unexpected(shard.absence(waiter.session, waiter.epoch, std::nullopt, now_ms_()));
  }
  if (*slot != waiter.slot || shard.head(*slot).generation != waiter.generation ||
      shard.holder(*slot) != waiter.client.page) {
    return std::unexpected(
        lease_lost("append", waiter.session, "it changed while memory was fetched"));
  }
  if (!result) {
    Error error = result.error();
    // The failed call and its file are the cause here; else nobody would know what it was.
    if (error.os_errno != 0) error = {error.code, {}, {}, error.message(), 0};
    error.operation = "append";
    error.object = session_name(waiter.session);
    return std::unexpected(std::move(error));
  }
  // In one generation nothing raises the need, except a scribble on the length word.
  const Plan planned = plan(shard, *slot, waiter.up_to);
  if (planned.chunks > booked.size()) {
    return std::unexpected(Error{ErrorCode::shard_damaged, "append", session_name(waiter.session),
                                 "its length word was overwritten"});
  }
  if (planned.chunks == 0) return shard.position(*slot);
  return apply(shard, *slot, planned, booked);
}

void Grants::drop_client(ClientId client) {
  for (auto& [id, order] : orders_) {
    std::erase_if(order.waiters, [&](const Waiter& waiter) { return waiter.client == client; });
    if (!order.waiters.empty()) continue;
    for (const ChunkIndex chunk : order.booked) shards_.at(order.shard).chunks.give_back(chunk);
    order.booked.clear();
  }
}

std::vector<ChunkIndex> Grants::booked(ShardId shard) const {
  std::vector<ChunkIndex> chunks;
  for (const auto& [id, order] : orders_) {
    if (order.shard == shard) chunks.insert(chunks.end(), order.booked.begin(), order.booked.end());
  }
  return chunks;
}

bool Grants::has_orders_for(ShardId shard) const {
  return std::ranges::any_of(orders_, [&](const auto& entry) {
    const Order& order = entry.second;
    return order.shard == shard ||
           std::ranges::any_of(order.departures,
                               [&](const auto& departure) { return departure.first == shard; });
  });
}

}  // namespace hotkv::core
