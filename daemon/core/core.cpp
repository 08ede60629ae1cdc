#include "daemon/core/core.hpp"

#include <algorithm>
#include <limits>
#include <string>

#include "daemon/core/core_impl.hpp"
#include "daemon/core/pid_text.hpp"

namespace hotkv::core {

Core::Core(Limits limits, std::function<std::uint64_t()> now_ms, PageLiveness& liveness)
    : impl_(std::make_unique<Impl>(limits, std::move(now_ms), liveness)) {}

Core::~Core() = default;

// ---- clients ------------------------------------------------------------------------------------

std::expected<Core::PageGrant, Error> Core::attach(ShardId shard_id, Access access,
                                                   std::uint32_t pid, std::uint64_t cookie) {
  Shard& shard = impl_->shards.at(shard_id);
  auto page = shard.pages.take(access, pid, cookie);
  if (!page) {
    impl_->reap(shard);
    page = shard.pages.take(access, pid, cookie);
  }
  if (!page) {
    return std::unexpected(
        Error{ErrorCode::too_many_clients, "attach", impl_->describe(shard),
              "all " + std::to_string(shard.pages.taken_count()) + " pages are taken"});
  }
  return PageGrant{{shard_id, *page}, cookie};
}

bool Core::is_page_of(ClientId client, Access access, std::uint64_t cookie) const {
  const PageTable& pages = impl_->shards.at(client.shard).pages;
  return pages.has_claims(client.page) && pages.cookie(client.page) == cookie &&
         pages.access(client.page) == access;
}

std::expected<Core::PageGrant, Error> Core::come_back(ClientId client, Access access,
                                                      std::uint64_t cookie) {
  Shard& shard = impl_->shards.at(client.shard);
  const bool is_its_own = is_page_of(client, access, cookie);
  // A connected one has a client: whoever asks knows its cookie from somewhere else.
  if (!is_its_own || shard.pages.is_connected(client.page) ||
      impl_->is_ending(shard, client.page) || !impl_->liveness.is_alive(client)) {
    return std::unexpected(
        Error{ErrorCode::shard_replaced, "attach", impl_->describe(shard),
              "page " + std::to_string(client.page.value()) + " is not one that this client left"});
  }
  shard.pages.reconnect(client.page);
  return PageGrant{client, cookie};
}

void Core::disconnected(ClientId client) {
  impl_->grants.drop_client(client);
  Shard& shard = impl_->shards.at(client.shard);
  shard.pages.disconnect(client.page);
  if (shard.pages.has_claims(client.page) && !impl_->liveness.is_alive(client)) {
    std::size_t leases_left = kLeasesAtOnce;
    impl_->end_claims(shard, client.page, leases_left);
  }
}

bool Core::has_leases_to_end() const {
  return !impl_->ending.empty();
}

void Core::end_some_leases() {
  for (std::size_t leases_left = kLeasesAtOnce; leases_left > 0 && has_leases_to_end();) {
    const ClientId client = impl_->ending.front();
    impl_->end_claims(impl_->shards.at(client.shard), client.page, leases_left);
  }
}

Access Core::access_of(ClientId client) const {
  return impl_->shards.at(client.shard).pages.access(client.page);
}

std::vector<ClientId> Core::take_gone_clients() {
  return std::exchange(impl_->gone, {});
}

// ---- operations ---------------------------------------------------------------------------------

Outcome<Position> Core::open(ClientId client, const SessionId& session, Epoch epoch,
                             const Fingerprint& fingerprint) {
  Shard& shard = impl_->shards.at(client.shard);
  if (auto error = impl_->check_recipe("open", shard, fingerprint)) {
    return impl_->refuse(shard, std::move(*error));
  }
  if (auto error = impl_->check_claims("open", shard, client.page, session)) {
    return impl_->refuse(shard, std::move(*error));
  }
  if (const auto known = shard.ledger.find(session); known && epoch < known->epoch) {
    return impl_->refuse(shard, {ErrorCode::stale_epoch, "open", session_name(session),
                                 "epoch " + std::to_string(known->epoch.value()) +
                                     " has been seen, got " + std::to_string(epoch.value())});
  }
  const auto live = shard.sessions.find(session);
  if (live && shard.epoch(*live) == epoch) return impl_->take_lease(shard, client.page, *live);
  return impl_->make_context(shard, client.page, session, epoch, live);
}

std::variant<Position, Refusal, Waiting> Core::append(ClientId client, const SessionId& session,
                                                      Epoch epoch, Generation generation,
                                                      TokenCount up_to) {
  Shard& shard = impl_->shards.at(client.shard);
  auto slot = impl_->held_slot("append", shard, client.page, session, epoch, generation);
  if (!slot) return std::move(slot.error());
  shard.note_use(*slot, impl_->now_ms());
  auto answer = impl_->grants.append(client, *slot, up_to);
  const auto* refusal = std::get_if<Refusal>(&answer);
  if (refusal == nullptr) {
    ++shard.counters.appends;
  } else {
    shard.counters.count(*refusal);
  }
  return answer;
}

Outcome<Position> Core::truncate(ClientId client, const SessionId& session, Epoch epoch,
                                 Generation generation, TokenCount from, TokenCount to) {
  Shard& shard = impl_->shards.at(client.shard);
  const auto slot = impl_->held_slot("truncate", shard, client.page, session, epoch, generation);
  if (!slot) return std::unexpected(slot.error());
  const TokenCount length = shard.published(*slot);
  shard.note_use(*slot, impl_->now_ms());
  // Nothing to roll back; also what a repeated TRUNCATE finds after its lost answer, once a
  // repeated OPEN has told the generation that stands.
  if (length == to) return shard.position(*slot);
  if (length != from || to > from) {
    const bool wrong_from = length != from;
    return impl_->refuse(
        shard, {wrong_from ? ErrorCode::length_mismatch : ErrorCode::invalid_argument, "truncate",
                session_name(session),
                "to " + std::to_string(to.value()) + " from " + std::to_string(from.value()) +
                    ", published are " + std::to_string(length.value()) + " tokens"});
  }
  if (!shard.has_generations_left(*slot)) return impl_->refuse_exhausted("truncate", shard, *slot);
  shard.truncate(*slot, to);
  ++shard.counters.truncates;
  return shard.position(*slot);
}

Outcome<void> Core::close(ClientId client, const SessionId& session, Epoch epoch,
                          Generation generation) {
  Shard& shard = impl_->shards.at(client.shard);
  const auto slot = impl_->held_slot("close", shard, client.page, session, epoch, generation);
  if (!slot) return std::unexpected(slot.error());
  if (!shard.has_generations_left(*slot)) return impl_->refuse_exhausted("close", shard, *slot);
  // A writer of this client may still be under way on another thread: the next holder must not
  // share its chunks, so the generation ends with the lease. Grants that were not used are freed by
  // it.
  shard.cut_off_writers(*slot);
  shard.set_holder(*slot, std::nullopt);
  return {};
}

Outcome<void> Core::release(ClientId client, const SessionId& session, Epoch epoch,
                            Generation generation, SlotIndex slot_of_generation) {
  Shard& shard = impl_->shards.at(client.shard);
  const auto slot = shard.find(session, epoch);
  if (!slot) return impl_->refuse_absent(shard, session, epoch);
  if (generation != Generation{0} &&
      (*slot != slot_of_generation || shard.head(*slot).generation != generation)) {
    return impl_->refuse(shard, lease_lost("release", session, "it is a newer generation"));
  }
  shard.retire(*slot, MissReason::released, impl_->now_ms());
  ++shard.counters.releases;
  return {};
}

Outcome<Position> Core::explain(ClientId client, const SessionId& session, Epoch epoch,
                                const Fingerprint& fingerprint, TokenCount expected,
                                LengthMatch match) {
  Shard& shard = impl_->shards.at(client.shard);
  if (auto error = impl_->check_recipe("resolve", shard, fingerprint)) {
    return impl_->refuse(shard, std::move(*error));
  }
  std::optional<TokenCount> asked;
  if (match != LengthMatch::any) asked = expected;
  const auto slot = shard.find(session, epoch);
  CacheMiss miss = shard.absence(session, epoch, asked, impl_->now_ms());
  if (slot) {
    const TokenCount length = shard.published(*slot);
    const bool matches = match == LengthMatch::any ||
                         (match == LengthMatch::exact ? length == expected : length >= expected);
    if (matches) {
      ++shard.counters.hits_explained;
      return shard.position(*slot);
    }
    miss.reason = MissReason::seq_len_mismatch;
    miss.known_length = length;
  }
  ++shard.counters.misses[static_cast<std::uint32_t>(miss.reason)];
  return std::unexpected(std::move(miss));
}

void Core::end_message(ShardId shard) {
  impl_->grants.end_message();
  if (impl_->shards.contains(shard)) impl_->shards.at(shard).sweep();
}

// ---- time and memory ----------------------------------------------------------------------------

void Core::tick() {
  std::size_t leases_left = kLeasesAtOnce;
  for (const auto& [id, shard] : impl_->shards.map()) {
    impl_->reap(*shard, Reaped::all, leases_left);
    impl_->expire(*shard);
    shard->sweep();
  }
}

std::vector<MemoryOrder> Core::take_memory_orders() {
  return impl_->grants.take_orders();
}

void Core::memory_order_done(std::uint64_t order_id, std::expected<void, Error> result,
                             bool punched) {
  impl_->grants.order_done(order_id, result, punched);
}

std::vector<FinishedGrant> Core::take_finished_grants() {
  return impl_->grants.take_finished();
}

void Core::set_store_probe(StoreProbe probe) {
  impl_->gate.set_probe(std::move(probe));
}

// ---- Impl ---------------------------------------------------------------------------------------

Core::Impl::Impl(Limits the_limits, std::function<std::uint64_t()> now, PageLiveness& the_liveness)
    : limits(the_limits),
      now_ms(std::move(now)),
      liveness(the_liveness),
      grants(limits, shards, now_ms, [this](Shard& shard, Reaped whom) { reap(shard, whom); }),
      reclaim(limits, shards) {}

std::string Core::Impl::describe(const Shard& shard) {
  return "shard \"" + escape_bytes(shard.key.model_id) + "\" layers " +
         std::to_string(shard.key.layers.first) + "-" + std::to_string(shard.key.layers.last);
}

std::unexpected<Refusal> Core::Impl::refuse(Shard& shard, Error error) {
  shard.counters.count(error);
  return std::unexpected(Refusal(std::move(error)));
}

std::unexpected<Refusal> Core::Impl::refuse_absent(Shard& shard, const SessionId& session,
                                                   Epoch epoch) {
  Refusal refusal(shard.absence(session, epoch, std::nullopt, now_ms()));
  shard.counters.count(refusal);
  return std::unexpected(std::move(refusal));
}

std::unexpected<Refusal> Core::Impl::refuse_exhausted(const char* operation, Shard& shard,
                                                      SlotIndex slot) {
  return refuse(shard, {ErrorCode::generations_exhausted, operation,
                        session_name(shard.session(slot)), "open a higher epoch"});
}

std::optional<Error> Core::Impl::check_recipe(const char* operation, const Shard& shard,
                                              const Fingerprint& fingerprint) {
  if (shard.recipe.fingerprint() == fingerprint) return std::nullopt;
  std::string text = shard.recipe.canonical_text();
  std::ranges::replace(text, '\n', ' ');
  return Error{ErrorCode::incompatible_recipe, operation, describe(shard),
               "the request's fingerprint is not that of the shard's recipe: " + text};
}

std::optional<Error> Core::Impl::check_claims(const char* operation, const Shard& shard,
                                              PageIndex page, const SessionId& session) const {
  if (shard.pages.has_claims(page) && !is_ending(shard, page)) return std::nullopt;
  return Error{ErrorCode::not_attached, operation, session_name(session),
               "this client's mapping of its page is gone"};
}

Outcome<SlotIndex> Core::Impl::held_slot(const char* operation, Shard& shard, PageIndex page,
                                         const SessionId& session, Epoch epoch,
                                         Generation generation) {
  const auto slot = shard.find(session, epoch);
  if (!slot) return refuse_absent(shard, session, epoch);
  if (shard.holder(*slot) != page) {
    return refuse(shard, lease_lost(operation, session, "another worker holds it, or nobody"));
  }
  if (shard.head(*slot).generation != generation) {
    return refuse(
        shard, lease_lost(operation, session,
                          "generation " + std::to_string(generation.value()) + " is over, it is " +
                              std::to_string(shard.head(*slot).generation.value())));
  }
  return *slot;
}

Outcome<Position> Core::Impl::take_lease(Shard& shard, PageIndex page, SlotIndex slot) {
  auto holder = shard.holder(slot);
  if (holder && *holder != page && !liveness.is_alive({shard.id, *holder})) {
    // Connected or not: an exec ends the mapping while a forked child keeps the socket open.
    shard.end_dead_lease(slot);
    std::size_t no_others = 0;
    end_claims(shard, *holder, no_others);
    holder.reset();
  }
  if (holder && *holder != page) {
    if (shard.pages.is_connected(*holder) || is_awaited(shard, *holder)) {
      return refuse(shard, {ErrorCode::session_busy, "open", session_name(shard.session(slot)),
                            "held by the client of page " + std::to_string(holder->value()) +
                                ", pid " + pid_text(shard.pages.pid(*holder))});
    }
    // It lives but hung up, and may be writing at this moment: a new generation cuts it off.
    if (!shard.has_generations_left(slot)) return refuse_exhausted("open", shard, slot);
    shard.cut_off_writers(slot);
    ++shard.counters.takeovers;
  }
  if (holder != page) shard.set_holder(slot, page);
  shard.note_use(slot, now_ms());
  ++shard.counters.opens;
  return shard.position(slot);
}

bool Core::Impl::is_awaited(const Shard& shard, PageIndex page) const {
  return shard.pages.was_adopted(page) && now_ms() - adopted_ms < kReturnGraceMs;
}

Outcome<Position> Core::Impl::make_context(Shard& shard, PageIndex page, const SessionId& session,
                                           Epoch epoch, std::optional<SlotIndex> superseded) {
  const std::uint64_t now = now_ms();
  if (!superseded) {
    if (!shard.sessions.has_index_room(session)) return refuse_collision(shard, session);
    if (auto error = make_slot_room(shard, session)) return refuse(shard, std::move(*error));
    // That may have found out that this very client is gone.
    if (auto error = check_claims("open", shard, page, session)) {
      return refuse(shard, std::move(*error));
    }
  }
  // The moment from which lower epochs are stale; everything after it can be finished by a rebuild.
  const auto forgotten = shard.ledger.remember(session, epoch, now);
  if (forgotten && now - std::min(*forgotten, now) < limits.tombstone_ttl_ms) {
    ++shard.counters.forgotten_early;
  }
  if (superseded) shard.retire(*superseded, MissReason::superseded_epoch, now);
  // Its own place in the index can have gone to one of many that collide with it.
  if (!shard.sessions.has_index_room(session)) return refuse_collision(shard, session);
  const auto slot = shard.sessions.take_free();
  if (!slot) {  // every slot is worn out: after some 10^13 generations
    return refuse(shard, {ErrorCode::too_many_sessions, "open", session_name(session),
                          "every slot of the shard is worn out"});
  }
  shard.open(*slot, session, epoch, page, now);
  ++shard.counters.opens;
  return shard.position(*slot);
}

std::unexpected<Refusal> Core::Impl::refuse_collision(Shard& shard, const SessionId& session) {
  return refuse(shard, {ErrorCode::too_many_sessions, "open", session_name(session),
                        "its hash collides with those of too many others"});
}

std::optional<Error> Core::Impl::make_slot_room(Shard& shard, const SessionId& session) {
  const std::uint32_t cap = std::min(limits.session_cap, shard.tables.capacities().slot_count);
  bool reaped = false;
  while (shard.sessions.live_count() >= cap) {
    const auto victim = reclaim.choose_one(shard, now_ms());
    if (victim) {
      shard.retire(*victim, MissReason::evicted_lru, now_ms());
    } else if (!reaped) {
      reap(shard);
      reaped = true;
    } else {
      ++shard.counters.evictions_in_vain;
      return Error{
          ErrorCode::too_many_sessions, "open", session_name(session),
          "all " + std::to_string(cap) + " contexts of " + describe(shard) + " are pinned"};
    }
  }
  return std::nullopt;
}

bool Core::Impl::is_ending(const Shard& shard, PageIndex page) const {
  return std::ranges::find(ending, ClientId{shard.id, page}) != ending.end();
}

void Core::Impl::end_claims(Shard& shard, PageIndex page, std::size_t& leases_left) {
  if (!shard.pages.has_claims(page)) return;
  const ClientId client{shard.id, page};
  const bool has_begun = is_ending(shard, page);
  if (!has_begun && shard.pages.is_connected(page)) gone.push_back(client);
  const bool is_done = shard.end_claims(page, leases_left);
  // From its end on the page can be another client's: nothing may remember it.
  if (is_done) std::erase(ending, client);
  if (!is_done && !has_begun) ending.push_back(client);
}

void Core::Impl::reap(Shard& shard, Reaped whom) {
  std::size_t all = std::numeric_limits<std::size_t>::max();
  reap(shard, whom, all);
}

void Core::Impl::reap(Shard& shard, Reaped whom, std::size_t& leases_left) {
  for (const PageIndex page : shard.pages.taken()) {
    if (!shard.pages.has_claims(page)) continue;
    const bool is_known = is_ending(shard, page);
    if (whom == Reaped::disconnected && shard.pages.is_connected(page) && !is_known) continue;
    if (is_known || !liveness.is_alive({shard.id, page})) end_claims(shard, page, leases_left);
  }
}

void Core::Impl::expire(Shard& shard) {
  if (limits.ttl_ms == 0) return;
  const std::uint64_t now = now_ms();
  std::optional<PinSet> pins;  // read only if something is old enough
  std::size_t looked_at = 0;
  shard.walk_least_recent(now, [&](SlotIndex slot) {
    if (now - std::min(shard.recency.used_ms(slot), now) < limits.ttl_ms) return false;
    if (!pins) pins = shard.pages.scan_pins();
    if (pins->contains(slot, shard.head(slot).generation)) {
      shard.recency.touch(slot, now);  // pinned is in use
    } else {
      shard.retire(slot, MissReason::evicted_ttl, now);
    }
    return ++looked_at < kExpirationsPerTickMax;
  });
}

}  // namespace hotkv::core
