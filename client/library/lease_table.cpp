#include "client/library/lease_table.hpp"

#include <cstddef>

#include "shared/layout.hpp"
#include "shared/words.hpp"

namespace hotkv::client {
namespace {

// Slots are taken into use in order. So many in a row that never were end the search: reading on
// would give memory to parts of the tables that have none.
constexpr std::uint32_t kUnusedSlotsMax = 64;

protocol::CloseOperation close_of(const SessionId& session, Epoch epoch, Generation generation) {
  return {encode_name(session, epoch), generation.value(), 0};
}

// The context of a slot whose lease the client of `page` has. Read while the daemon may change the
// slot, it can be one that never was; then the daemon refuses what is asked about it.
std::optional<std::pair<SessionId, Epoch>> key_if_held(const SlotRecord& untrusted_slot,
                                                       PageIndex page) {
  if (untrusted_slot.holder.load(std::memory_order_acquire) != page.value() + 1) return {};
  const std::uint32_t size = untrusted_slot.id_bytes.load(std::memory_order_acquire);
  std::uint64_t words[SessionId::kWords];
  if (size > sizeof words) return {};
  for (std::size_t i = 0; i < SessionId::kWords; ++i) {
    words[i] = untrusted_slot.id[i].load(std::memory_order_acquire);
  }
  const auto session = SessionId::from({reinterpret_cast<const char*>(words), size});
  if (!session) return {};
  return std::pair(*session, Epoch{untrusted_slot.epoch.load(std::memory_order_acquire)});
}

}  // namespace

Lease LeaseTable::share(const SessionId& session, Epoch epoch) {
  Key key{session, epoch};
  const std::lock_guard lock(mutex_);
  ++entries_[key].shares;
  return Lease(*this, std::move(key));
}

void LeaseTable::stands_at(const Key& key, const Standing& standing) {
  const std::lock_guard lock(mutex_);
  note(entries_[key], standing);
}

void LeaseTable::note(Entry& entry, const Standing& standing) {
  // Replies to two threads can be told in the wrong order; within a slot the higher generation is
  // the later one.
  if (entry.standing && entry.standing->slot == standing.slot &&
      entry.standing->generation > standing.generation) {
    return;
  }
  entry.standing = standing;
}

void LeaseTable::ended(const Key& key) {
  const std::lock_guard lock(mutex_);
  entries_[key].standing.reset();
}

std::optional<Request> LeaseTable::let_go(const Key& key) {
  const auto found = entries_.find(key);
  if (--found->second.shares != 0) return std::nullopt;
  const std::optional<Standing> standing = found->second.standing;
  entries_.erase(found);
  if (!standing) return std::nullopt;
  Request close(protocol::Type::close);
  close.add(close_of(key.first, key.second, standing->generation));
  return close;
}

void LeaseTable::settle(const SessionIndex& tables, PageIndex page) {
  std::uint32_t next = 0;
  std::uint32_t unused = 0;
  while (next < tables.slot_count() && unused < kUnusedSlotsMax) {
    // Held until what it decided is on its way. One message for as many as it takes: nobody
    // receives on this thread meanwhile, and the daemon hangs up on whoever leaves many replies
    // unread.
    const std::lock_guard lock(mutex_);
    Request closes(protocol::Type::close);
    for (; next < tables.slot_count() && unused < kUnusedSlotsMax && !closes.is_full(); ++next) {
      const SlotIndex slot{next};
      const HeadWord head = load_head(tables.slot(slot).head);
      unused = head.generation == Generation{0} ? unused + 1 : 0;
      if (head.tip.is_free()) continue;
      const auto held = key_if_held(tables.slot(slot), page);
      if (!held) continue;
      const auto entry = entries_.find(*held);
      if (entry != entries_.end()) {
        note(entry->second, {slot, head.generation});
      } else {
        closes.add(close_of(held->first, held->second, head.generation));
      }
    }
    if (closes.count() != 0) connection_.post(std::move(closes));
  }
}

Lease::~Lease() {
  if (table_ == nullptr || table_->guard_.is_foreign()) return;
  const std::lock_guard lock(table_->mutex_);
  if (auto close = table_->let_go(key_)) table_->connection_.post(std::move(*close));
}

std::optional<Connection::Pending> Lease::close() {
  LeaseTable* const table = std::exchange(table_, nullptr);
  if (table == nullptr) return std::nullopt;
  const std::lock_guard lock(table->mutex_);
  auto close = table->let_go(key_);
  if (!close) return std::nullopt;
  return table->connection_.submit(std::move(*close));
}

}  // namespace hotkv::client
