#pragma once
// The client's half of the session index: where a session lives, found without a lock.

#include <cstdint>
#include <optional>
#include <span>

#include <hotkv/types.hpp>

#include "shared/layout.hpp"
#include "shared/session_hash.hpp"
#include "shared/words.hpp"

namespace hotkv::client {

// A slot that held (session, epoch) under this head's generation. It holds still, if the head's
// generation is the same after the pin (see IDENTITY in words.hpp).
struct Place {
  SlotIndex slot;
  HeadWord head;
};

// Reads the index and the slots of a shard's tables. Every number found there is range-checked.
class SessionIndex {
 public:
  SessionIndex(std::span<const IndexEntry> index, std::span<const SlotRecord> slots,
               const std::uint64_t (&hash_key)[2])
      : index_(index), slots_(slots), hash_key_{hash_key[0], hash_key[1]} {}

  [[nodiscard]] const SlotRecord& slot(SlotIndex slot) const { return slots_[slot.value()]; }
  [[nodiscard]] std::uint32_t slot_count() const {
    return static_cast<std::uint32_t>(slots_.size());
  }

  // Nothing where it is not there or was not seen: an entry can be missed while the daemon shifts
  // entries, and the daemon has the last word on every miss.
  [[nodiscard]] std::optional<Place> find(const SessionId& session, Epoch epoch) const {
    const std::uint64_t hash = session_hash(session, hash_key_);
    const std::uint64_t mask = index_.size() - 1;  // a power of two: check_header
    for (std::uint32_t probe = 0; probe < kIndexProbesMax; ++probe) {
      const std::uint64_t entry = index_[(hash + probe) & mask].load(std::memory_order_acquire);
      if (entry == 0) return std::nullopt;
      if (!index_tag_matches(entry, hash)) continue;
      const SlotIndex untrusted_slot = index_slot(entry);
      if (untrusted_slot.value() >= slots_.size()) continue;
      if (const auto head = head_of(untrusted_slot, session, epoch)) {
        return Place{untrusted_slot, *head};
      }
    }
    return std::nullopt;
  }

 private:
  // The head is loaded before id and epoch, as words.hpp wants it.
  [[nodiscard]] std::optional<HeadWord> head_of(SlotIndex slot, const SessionId& session,
                                                Epoch epoch) const {
    const SlotRecord& record = slots_[slot.value()];
    const HeadWord head = load_head(record.head);
    HOTKV_FAULT_POINT("resolve.between-head-and-id");
    if (head.tip.is_free() || !slot_has_session(record, session) ||
        record.epoch.load(std::memory_order_acquire) != epoch.value()) {
      return std::nullopt;
    }
    return head;
  }

  std::span<const IndexEntry> index_;
  std::span<const SlotRecord> slots_;
  std::uint64_t hash_key_[2];
};

}  // namespace hotkv::client
