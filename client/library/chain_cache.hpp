#pragma once
// Chains already walked, so that a resolve walks only what was added since the last one.

#include <array>
#include <cstdint>
#include <expected>
#include <memory>
#include <mutex>
#include <span>
#include <unordered_map>

#include <hotkv/error.hpp>
#include <hotkv/types.hpp>

#include "shared/words.hpp"

namespace hotkv {

// The chunks of one generation of a context, first token first. Immutable. Chains that grew out of
// one another share storage: each reads only its own first `size` entries, and a longer one writes
// only behind them.
struct Chain {
  std::shared_ptr<ChunkIndex[]> chunks;
  std::uint32_t size = 0;
  std::uint32_t capacity = 0;
};

namespace client {

using ChainRef = std::shared_ptr<const Chain>;

// Thread-safe; the locks are held by threads of this process only, for the length of one walk.
//
// A chain grows by one chunk in chunk_tokens appended tokens, and its storage doubles, so appending
// costs a decode step nothing and a new chunk a few words. A new generation is walked anew: chunks
// of the old one may have been given away and come back with another predecessor.
class ChainCache {
 public:
  // `chunk_words` are the tables' chunk words; they outlive the cache.
  explicit ChainCache(std::span<const AtomicWord> chunk_words) : chunk_words_(chunk_words) {}

  // The chain that ends at `tip` or beyond it, with at least `chunks_min` chunks. The caller has
  // this generation pinned and confirmed, so the chunk words of the chain stand still. Errors:
  // shard_damaged if the words contradict each other or the chain is shorter than that.
  [[nodiscard]] std::expected<ChainRef, Error> chain(SlotIndex slot, Generation generation, Tip tip,
                                                     std::uint32_t chunks_min);

 private:
  struct Entry {
    Generation generation;
    ChainRef chain;
  };
  struct Stripe {
    std::mutex mutex;
    std::unordered_map<std::uint32_t, Entry> entries;  // by slot; guarded by mutex
  };
  // Enough that threads of one process seldom meet; contexts spread over them by slot.
  static constexpr std::uint32_t kStripes = 64;
  // Chains remembered in one stripe. Beyond it one is forgotten, which costs a walk.
  static constexpr std::size_t kEntriesPerStripeMax = 4096;

  [[nodiscard]] std::expected<ChainRef, Error> walk(const ChainRef& known, ChunkIndex tip) const;

  std::span<const AtomicWord> chunk_words_;
  std::array<Stripe, kStripes> stripes_;
};

}  // namespace client
}  // namespace hotkv
