#pragma once
// The clients of a shard: who has which page, what they pin, which leases they hold.

#include <algorithm>
#include <cstdint>
#include <optional>
#include <unordered_set>
#include <utility>
#include <vector>

#include <hotkv/types.hpp>

#include "daemon/core/shard_tables.hpp"
#include "daemon/core/store_gate.hpp"

namespace hotkv::core {

// The pins of one moment: which generations somebody has claimed. Sorted, not hashed: clients
// choose the words, and could choose them to collide.
class PinSet {
 public:
  explicit PinSet(std::vector<std::uint64_t> bits) : bits_(std::move(bits)) {
    std::ranges::sort(bits_);
  }
  [[nodiscard]] bool contains(SlotIndex slot, Generation generation) const {
    return std::ranges::binary_search(bits_, PinWord{slot, generation}.bits());
  }

 private:
  std::vector<std::uint64_t> bits_;
};

// A page is taken from the attach of its client until its mapping is gone, connected or not.
class PageTable {
 public:
  PageTable(const ShardTables& tables, StoreGate& gate);

  // Nothing: every page is taken.
  [[nodiscard]] std::optional<PageIndex> take(Access access, std::uint32_t pid,
                                              std::uint64_t cookie);
  // The client of a taken page that was disconnected, or that an earlier core knew, is back.
  void reconnect(PageIndex page);
  // The client's mapping is gone: its pins count no more.
  void clear_pins(PageIndex page);
  // And the caller has ended its leases. The page can be taken again once its connection has ended
  // too: a forked child can hold that longer.
  void end_claims(PageIndex page);
  // The connection ended. The page is free at once where the mapping is gone already.
  void disconnect(PageIndex page);

  [[nodiscard]] bool is_taken(PageIndex page) const {
    return page.value() < clients_.size() && clients_[page.value()].taken;
  }
  [[nodiscard]] bool is_connected(PageIndex page) const { return clients_[page.value()].connected; }
  // Its client was another core's and has not come back to this one.
  [[nodiscard]] bool was_adopted(PageIndex page) const { return clients_[page.value()].adopted; }
  [[nodiscard]] std::uint64_t cookie(PageIndex page) const;
  // Taken, and its mapping is not known to be gone.
  [[nodiscard]] bool has_claims(PageIndex page) const {
    return is_taken(page) && clients_[page.value()].claims;
  }
  [[nodiscard]] Access access(PageIndex page) const;
  [[nodiscard]] std::uint32_t pid(PageIndex page) const;
  [[nodiscard]] std::uint32_t taken_count() const { return taken_count_; }
  [[nodiscard]] std::vector<PageIndex> taken() const;

  // Slots whose lease the client holds.
  [[nodiscard]] std::unordered_set<std::uint32_t>& held_slots(PageIndex page) {
    return clients_[page.value()].held_slots;
  }

  // Reads every used pin word of every taken page: D2 of words.hpp, after the stores of D1.
  [[nodiscard]] PinSet scan_pins() const;

  // Takes over the records; nobody is connected.
  void rebuild();

 private:
  struct Client {
    bool taken = false;
    bool connected = false;
    bool claims = false;
    bool adopted = false;
    std::unordered_set<std::uint32_t> held_slots;
  };

  void free(PageIndex page);

  const ShardTables& tables_;
  StoreGate& gate_;
  std::vector<Client> clients_;
  std::uint32_t taken_count_ = 0;
  std::uint32_t taken_below_ = 0;  // every taken page lies below
};

}  // namespace hotkv::core
