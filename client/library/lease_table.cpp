#include "client/library/lease_table.hpp"

namespace hotkv::client {

Lease LeaseTable::share(const SessionId& session, Epoch epoch) {
  Key key{session, epoch};
  const std::lock_guard lock(mutex_);
  ++entries_[key].shares;
  return Lease(*this, std::move(key));
}

void LeaseTable::stands_at(const Key& key, const Position& position) {
  const std::lock_guard lock(mutex_);
  std::optional<Position>& known = entries_[key].position;
  // Replies to two threads can be told in the wrong order; within a slot the higher generation is
  // the later one.
  if (known && known->slot == position.slot && known->generation > position.generation) return;
  known = position;
}

void LeaseTable::ended(const Key& key) {
  const std::lock_guard lock(mutex_);
  entries_[key].position.reset();
}

std::optional<Request> LeaseTable::let_go(const Key& key) {
  const auto found = entries_.find(key);
  if (--found->second.shares != 0) return std::nullopt;
  const std::optional<Position> position = found->second.position;
  entries_.erase(found);
  if (!position) return std::nullopt;
  Request close(protocol::Type::close);
  close.add(protocol::CloseOperation{encode_name(key.first, key.second),
                                     position->generation.value(), 0});
  return close;
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
