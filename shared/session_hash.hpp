#pragma once
// The hash of the session index. Keyed and named here because both sides must agree on it.

#include <cstddef>
#include <cstdint>
#include <span>

#include <hotkv/types.hpp>

#include "shared/layout.hpp"

namespace hotkv {

// A multiply-and-fold hash over words and a number, keyed with the shard's random words.
[[nodiscard]] inline std::uint64_t keyed_hash(std::span<const std::uint64_t> words,
                                              std::uint64_t number, const std::uint64_t (&key)[2]) {
  const auto fold = [](std::uint64_t a, std::uint64_t b) {
    const auto product = static_cast<unsigned __int128>(a) * b;
    return static_cast<std::uint64_t>(product) ^ static_cast<std::uint64_t>(product >> 64);
  };
  std::uint64_t hash = key[0] ^ number;
  for (const std::uint64_t word : words) {
    hash = fold(hash ^ word, key[1] | 1) + 0x9e37'79b9'7f4a'7c15;
  }
  return fold(hash, 0xa076'1d64'78bd'642f);
}

// Of the id's words and length. It only chooses where to look: whoever finds an entry compares the
// whole id.
[[nodiscard]] inline std::uint64_t session_hash(const SessionId& session,
                                                const std::uint64_t (&key)[2]) {
  const std::size_t words = (session.size_bytes() + 7) / 8;
  return keyed_hash(std::span(session.words()).first(words), session.size_bytes(), key);
}

// An index entry and its parts.
[[nodiscard]] constexpr std::uint64_t index_entry(std::uint64_t hash, SlotIndex slot) {
  return (hash & 0xffff'ffff'0000'0000) | (slot.value() + 1);
}
[[nodiscard]] constexpr bool index_tag_matches(std::uint64_t entry, std::uint64_t hash) {
  return entry >> 32 == hash >> 32;
}
// Only of an entry that is not 0.
[[nodiscard]] constexpr SlotIndex index_slot(std::uint64_t entry) {
  return SlotIndex{static_cast<std::uint32_t>(entry) - 1};
}

// Does the slot hold this session? Acquire loads: see IDENTITY in words.hpp.
[[nodiscard]] inline bool slot_has_session(const SlotRecord& slot, const SessionId& session) {
  if (slot.id_bytes.load(std::memory_order_acquire) != session.size_bytes()) return false;
  const std::size_t words = (session.size_bytes() + 7) / 8;
  for (std::size_t i = 0; i < words; ++i) {
    if (slot.id[i].load(std::memory_order_acquire) != session.words()[i]) return false;
  }
  return true;
}

}  // namespace hotkv
