#pragma once
// By which the next daemon knows what the tables said from what damage made of them.

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>

#include <hotkv/types.hpp>

#include "shared/session_hash.hpp"
#include "shared/words.hpp"

namespace hotkv::core {

// Both are keyed with the shard's random words and stored before the head that makes the slot live
// or the chunk part of a chain. They find what is not as it was written: a slot that names another
// context or an older chain, a chain that leads into the chunks of another context or of one that
// has ended. Only the daemon reads and writes them, on its one thread: they order nothing. They
// keep no secret, as whoever may read the tables can read the key, and they do not cover what
// clients write: bytes of chunks, and the published length within the chain.

// Whose context a slot holds.
[[nodiscard]] inline std::uint64_t slot_identity(const TablesHeader& header, SlotIndex slot,
                                                 const SessionId& session, Epoch epoch) {
  const std::array<std::uint64_t, 3> words{session_hash(session, header.hash_key), epoch.value(),
                                           slot.value()};
  return keyed_hash(words, words.size(), header.hash_key);
}

// Of a live slot: whose context it holds, and its head. Never 0, which a free slot has.
[[nodiscard]] inline std::uint64_t head_seal(const TablesHeader& header, std::uint64_t identity,
                                             HeadWord head) {
  const std::array<std::uint64_t, 2> words{identity, head.bits()};
  return keyed_hash(words, words.size(), header.hash_key) | 1;
}

[[nodiscard]] inline std::ptrdiff_t count_seals(const SlotRecord& record) {
  return std::ranges::count_if(record.seals, [](const AtomicWord& seal) {
    return seal.load(std::memory_order_relaxed) != 0;
  });
}

// Of a chunk that a slot owns, and of its place in the chain. Never 0, which a free chunk has.
[[nodiscard]] inline std::uint64_t chunk_seal(const TablesHeader& header, SlotIndex slot,
                                              ChunkIndex chunk, ChunkWord word) {
  const std::array<std::uint64_t, 3> words{slot.value(), chunk.value(), word.bits()};
  return keyed_hash(words, words.size(), header.hash_key) | 1;
}

}  // namespace hotkv::core
