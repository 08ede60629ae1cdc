#pragma once
// All shards of the daemon, and the sums of the budget over them.

#include <algorithm>
#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <set>

#include "daemon/core/limits.hpp"
#include "daemon/core/shard.hpp"

namespace hotkv::core {

class Shards {
 public:
  using Map = std::map<ShardId, std::unique_ptr<Shard>>;

  [[nodiscard]] Shard& at(ShardId id) const { return *map_.at(id); }
  [[nodiscard]] bool contains(ShardId id) const { return map_.contains(id); }
  [[nodiscard]] Map& map() { return map_; }
  [[nodiscard]] const Map& map() const { return map_; }

  [[nodiscard]] Shard* find(const ShardKey& key) const {
    for (const auto& [id, shard] : map_) {
      if (shard->key == key) return shard.get();
    }
    return nullptr;
  }

  // The account: recounted from the shards each time, so it cannot drift.
  [[nodiscard]] std::int64_t provisioned_bytes() const {
    std::int64_t bytes = 0;
    for (const auto& [id, shard] : map_) {
      bytes += static_cast<std::int64_t>(shard->provisioned_bytes());
    }
    return bytes;
  }
  [[nodiscard]] std::int64_t provisioned_bytes_of(std::uint32_t owner_uid) const {
    std::int64_t bytes = 0;
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
};

}  // namespace hotkv::core
