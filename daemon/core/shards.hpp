#pragma once
// All shards of the daemon, and the sums of the budget over them.

#include <algorithm>
#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <utility>

#include "daemon/core/limits.hpp"
#include "daemon/core/shard.hpp"

namespace hotkv::core {

class Shards {
 public:
  using Map = std::map<ShardId, std::unique_ptr<Shard>>;

  // Only of a shard that is there.
  [[nodiscard]] Shard& at(ShardId id) { return *map_.at(id); }
  [[nodiscard]] const Shard& at(ShardId id) const { return *map_.at(id); }
  [[nodiscard]] bool contains(ShardId id) const { return map_.contains(id); }
  [[nodiscard]] Map& map() { return map_; }
  [[nodiscard]] const Map& map() const { return map_; }

  [[nodiscard]] Shard* find(const ShardKey& key) const {
    for (const auto& [id, shard] : map_) {
      if (shard->key == key) return shard.get();
    }
    return nullptr;
  }

  // Bytes that an order takes from shards beyond what it brings to one. Until it is done the kernel
  // holds them, and if it fails they are back, so nobody may reckon with them.
  struct Surplus {
    std::int64_t total = 0;
    std::map<std::uint32_t, std::int64_t> of_owner;  // uid
  };
  void hold_back(std::uint64_t order_id, Surplus surplus) {
    surplus_.insert_or_assign(order_id, std::move(surplus));
  }
  void let_go(std::uint64_t order_id) { surplus_.erase(order_id); }
  [[nodiscard]] std::int64_t held_back_bytes() const {
    std::int64_t bytes = 0;
    for (const auto& [id, surplus] : surplus_) bytes += surplus.total;
    return bytes;
  }

  // The account: recounted from the shards each time, so it cannot drift.
  [[nodiscard]] std::int64_t provisioned_bytes() const {
    std::int64_t bytes = held_back_bytes();
    for (const auto& [id, shard] : map_) {
      bytes += static_cast<std::int64_t>(shard->provisioned_bytes());
    }
    return bytes;
  }
  [[nodiscard]] std::int64_t provisioned_bytes_of(std::uint32_t owner_uid) const {
    std::int64_t bytes = 0;
    for (const auto& [id, surplus] : surplus_) {
      const auto found = surplus.of_owner.find(owner_uid);
      if (found != surplus.of_owner.end()) bytes += found->second;
    }
    for (const auto& [id, shard] : map_) {
      if (shard->key.owner_uid != owner_uid) continue;
      bytes += static_cast<std::int64_t>(shard->provisioned_bytes());
    }
    return bytes;
  }
  [[nodiscard]] std::set<std::uint32_t> owners() const {
    std::set<std::uint32_t> uids;
    for (const auto& [id, shard] : map_) uids.insert(shard->key.owner_uid);
    return uids;
  }

 private:
  Map map_;
  std::map<std::uint64_t, Surplus> surplus_;  // by order
};

}  // namespace hotkv::core
