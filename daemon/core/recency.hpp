#pragma once
// Which context was used longest ago. One order serves both LRU and TTL, as the time to live is the
// same for all contexts of a shard.

#include <compare>
#include <cstdint>
#include <optional>
#include <set>
#include <utility>
#include <vector>

#include <hotkv/types.hpp>

namespace hotkv::core {

class Recency {
 public:
  // Of uses within one millisecond the one that was told later is the later one: a service that
  // does the same in the same order evicts the same, however fast it is.
  void touch(SlotIndex slot, std::uint64_t used_ms) {
    remove(slot);
    if (uses_.size() <= slot.value()) uses_.resize(slot.value() + 1, kNever);
    uses_[slot.value()] = {used_ms, ++touches_};
    order_.insert({uses_[slot.value()], slot.value()});
  }
  void remove(SlotIndex slot) {
    if (!contains(slot)) return;
    order_.erase({uses_[slot.value()], slot.value()});
    uses_[slot.value()] = kNever;
  }
  [[nodiscard]] std::uint64_t used_ms(SlotIndex slot) const { return uses_[slot.value()].at_ms; }
  [[nodiscard]] bool contains(SlotIndex slot) const {
    return slot.value() < uses_.size() && uses_[slot.value()] != kNever;
  }
  [[nodiscard]] std::size_t count() const { return order_.size(); }

  struct Use {
    std::uint64_t at_ms;
    std::uint64_t number;  // of all uses, in the order in which they were told
    friend auto operator<=>(const Use&, const Use&) = default;
  };
  struct Entry {
    Use use;
    SlotIndex slot;
  };
  // The least recently used one.
  [[nodiscard]] std::optional<Entry> oldest() const {
    if (order_.empty()) return std::nullopt;
    return Entry{order_.begin()->first, SlotIndex{order_.begin()->second}};
  }
  // The next one after `entry` in the order; it need not be in the order any more.
  [[nodiscard]] std::optional<Entry> after(const Entry& entry) const {
    const auto next = order_.upper_bound({entry.use, entry.slot.value()});
    if (next == order_.end()) return std::nullopt;
    return Entry{next->first, SlotIndex{next->second}};
  }

 private:
  static constexpr Use kNever{~std::uint64_t{0}, 0};
  std::vector<Use> uses_;  // by slot
  std::uint64_t touches_ = 0;
  std::set<std::pair<Use, std::uint32_t>> order_;
};

}  // namespace hotkv::core
