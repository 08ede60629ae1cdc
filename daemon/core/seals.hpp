#pragma once
// By which the next daemon knows what the tables said from what damage made of them.

#include <array>
#include <cstdint>

#include <hotkv/types.hpp>

#include "shared/session_hash.hpp"
#include "shared/words.hpp"

namespace hotkv::core {

// Both are keyed with the shard's random words and stored before the head that makes the slot live
// or the chunk part of a chain. They find what is not as it was written: a slot that names another
// context, a chain that leads into another context's chunks or into those of an ended one. They
// keep no secret: whoever may read the tables can read the key.

// Of a live slot, whose context it holds.
[[nodiscard]] inline std::uint64_t slot_seal(const TablesHeader& header, SlotIndex slot,
                                             const SessionId& session, Epoch epoch) {
  const std::array<std::uint64_t, 3> words{session_hash(session, header.hash_key), epoch.value(),
                                           slot.value()};
  return keyed_hash(words, words.size(), header.hash_key);
}

// Of a chunk that a slot owns, and of its place in the chain. Never 0, which a free chunk has.
[[nodiscard]] inline std::uint64_t chunk_seal(const TablesHeader& header, SlotIndex slot,
                                              ChunkIndex chunk, ChunkWord word) {
  const std::array<std::uint64_t, 3> words{slot.value(), chunk.value(), word.bits()};
  return keyed_hash(words, words.size(), header.hash_key) | 1;
}

}  // namespace hotkv::core
