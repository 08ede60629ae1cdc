#include "daemon/core/core.hpp"
#include "daemon/core/core_impl.hpp"
#include "daemon/core/verify.hpp"

namespace hotkv::core {
namespace {

void add(Account& sum, const Account& one) {
  sum.provisioned += one.provisioned;
  sum.used += one.used;
  sum.kept += one.kept;
  sum.free += one.free;
  sum.in_transit += one.in_transit;
}

}  // namespace

ContextInfo Core::Impl::context_info(const Shard& shard, SlotIndex slot, const PinSet& pins) const {
  const Position at = shard.position(slot);
  const std::uint64_t now = now_ms();
  const auto holder = shard.holder(slot);
  const std::uint64_t used = shard.last_used_ms(slot, now);
  return {shard.id,
          shard.session(slot),
          shard.epoch(slot),
          at.generation,
          at.length,
          at.writable,
          at.tip.is_chunk() ? shard.chunks.word(at.tip.chunk()).ordinal + 1 : 0,
          now > used ? now - used : 0,
          holder,
          holder ? shard.pages.pid(*holder) : 0,
          pins.contains(slot, at.generation)};
}

Status Core::status() const {
  Status status;
  status.limits = impl_->limits;
  status.waiting_grants = impl_->grants.waiting_count();
  for (const auto& [id, shard] : impl_->shards.map()) {
    ShardInfo info{id,
                   shard->key,
                   shard->recipe.canonical_text(),
                   shard->tables.geometry(),
                   shard->tables.header().boot_token,
                   shard->sessions.live_count(),
                   shard->pages.taken_count(),
                   shard->kept_heads.count(),
                   shard->ledger.ended_count(),
                   shard->account(),
                   shard->counters};
    add(status.account, info.account);
    status.shards.push_back(std::move(info));
  }
  const auto held_back = static_cast<std::uint64_t>(impl_->shards.held_back_bytes());
  status.account.provisioned += held_back;
  status.account.in_transit += held_back;
  return status;
}

std::vector<ContextInfo> Core::contexts() const {
  std::vector<ContextInfo> infos;
  for (const auto& [id, shard] : impl_->shards.map()) {
    const PinSet pins = shard->pages.scan_pins();
    for (const SlotIndex slot : shard->live_slots()) {
      infos.push_back(impl_->context_info(*shard, slot, pins));
    }
  }
  return infos;
}

std::vector<Explanation> Core::why(const SessionId& session) const {
  std::vector<Explanation> explanations;
  for (const auto& [id, shard] : impl_->shards.map()) {
    const auto entry = shard->ledger.find(session);
    if (!entry) continue;
    Explanation explanation{id, shard->key, {}, {}};
    if (const auto slot = shard->sessions.find(session)) {
      explanation.context = impl_->context_info(*shard, *slot, shard->pages.scan_pins());
    } else {
      explanation.last = shard->absence(session, entry->epoch, std::nullopt, impl_->now_ms());
    }
    explanations.push_back(std::move(explanation));
  }
  return explanations;
}

std::optional<std::string> Core::verify(ShardId id) const {
  const Shard& shard = impl_->shards.at(id);
  const auto broken = verify_shard(shard, impl_->grants.booked(id));
  if (!broken) return std::nullopt;
  return Impl::describe(shard) + ": " + *broken;
}

std::optional<std::string> Core::verify() const {
  for (const auto& [id, shard] : impl_->shards.map()) {
    if (auto broken = verify(id)) return broken;
  }
  if (impl_->excess(std::nullopt) > impl_->tolerated_excess) {
    return "provisioned bytes exceed the budget";
  }
  return std::nullopt;
}

}  // namespace hotkv::core
