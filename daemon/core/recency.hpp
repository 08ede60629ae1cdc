#pragma once
// Which context was used longest ago. One order serves both LRU and TTL, as the time to live is the
// same for all contexts of a shard.

#include <cstdint>
#include <optional>
#include <set>
#include <utility>
#include <vector>

#include <hotkv/types.hpp>

namespace hotkv::core {

class Recency {
 public:
  void touch(SlotIndex slot, std::uint64_t used_ms) {
    remove(slot);
    if (used_ms_.size() <= slot.value()) used_ms_.resize(slot.value() + 1, kNever);
    used_ms_[slot.value()] = used_ms;
    order_.insert({used_ms, slot.value()});
  }
  void remove(SlotIndex slot) {
    if (used_ms_.size() <= slot.value() || used_ms_[slot.value()] == kNever) return;
    order_.erase({used_ms_[slot.value()], slot.value()});
    used_ms_[slot.value()] = kNever;
  }
  [[nodiscard]] std::uint64_t used_ms(SlotIndex slot) const { return used_ms_[slot.value()]; }
  [[nodiscard]] bool contains(SlotIndex slot) const {
    return slot.value() < used_ms_.size() && used_ms_[slot.value()] != kNever;
  }
  [[nodiscard]] std::size_t count() const { return order_.size(); }

  struct Entry {
    std::uint64_t used_ms;
    SlotIndex slot;
  };
  // The least recently used one.
  [[nodiscard]] std::optional<Entry> oldest() const {
    if (order_.empty()) return std::nullopt;
    return Entry{order_.begin()->first, SlotIndex{order_.begin()->second}};
  }
  // The next one after `entry` in the order; it need not be in the order any more.
  [[nodiscard]] std::optional<Entry> after(const Entry& entry) const {
    const auto next = order_.upper_bound({entry.used_ms, entry.slot.value()});
    if (next == order_.end()) return std::nullopt;
    return Entry{next->first, SlotIndex{next->second}};
  }

 private:
  static constexpr std::uint64_t kNever = ~std::uint64_t{0};
  std::vector<std::uint64_t> used_ms_;  // by slot
  std::set<std::pair<std::uint64_t, std::uint32_t>> order_;
};

}  // namespace hotkv::core
