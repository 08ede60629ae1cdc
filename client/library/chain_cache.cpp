#include "client/library/chain_cache.hpp"

#include <algorithm>
#include <string>

namespace hotkv::client {
namespace {

Error damaged(ChunkIndex chunk, std::string cause) {
  return Error{ErrorCode::shard_damaged, "walk chain", "chunk " + std::to_string(chunk.value()),
               std::move(cause)};
}

const ChainRef& nothing_known() {
  static const ChainRef empty = std::make_shared<const Chain>();
  return empty;
}

bool ends_at(const Chain& chain, ChunkIndex tip) {
  return chain.size != 0 && chain.chunks[chain.size - 1] == tip;
}

Chain copy_with_room(const Chain& known, std::uint32_t size) {
  Chain chain;
  chain.capacity = std::max(size, known.capacity * 2);
  chain.chunks = std::make_shared<ChunkIndex[]>(chain.capacity);
  std::copy_n(known.chunks.get(), known.size, chain.chunks.get());
  return chain;
}

}  // namespace

std::expected<ChainRef, Error> ChainCache::chain(SlotIndex slot, Generation generation, Tip tip,
                                                 std::uint32_t chunks_min) {
  if (!tip.is_chunk()) {
    if (chunks_min != 0) {
      return std::unexpected(Error{ErrorCode::shard_damaged, "walk chain",
                                   "slot " + std::to_string(slot.value()),
                                   "tokens are published but there is no chunk"});
    }
    return nothing_known();
  }
  Stripe& stripe = stripes_[slot.value() % kStripes];
  const std::lock_guard lock(stripe.mutex);
  const auto found = stripe.entries.find(slot.value());
  const bool is_known = found != stripe.entries.end() && found->second.generation == generation;
  // What nearly every call finds: nothing was added.
  if (is_known && ends_at(*found->second.chain, tip.chunk()) &&
      found->second.chain->size >= chunks_min) {
    return found->second.chain;
  }
  auto chain = walk(is_known ? found->second.chain : nothing_known(), tip.chunk());
  if (!chain) return chain;
  if ((*chain)->size < chunks_min) {
    return std::unexpected(damaged(tip.chunk(), "the chain has " + std::to_string((*chain)->size) +
                                                    " chunks, the length needs " +
                                                    std::to_string(chunks_min)));
  }
  if (is_known) {
    found->second.chain = *chain;
  } else if (found == stripe.entries.end() || found->second.generation < generation) {
    if (stripe.entries.size() >= kEntriesPerStripeMax) stripe.entries.erase(stripe.entries.begin());
    stripe.entries[slot.value()] = {generation, *chain};
  }
  return chain;
}

// From the new tip back to what is known. Bounded by the ordinal of the tip, which is below the
// number of chunks, and checked at every step: ordinals fall by one and end at 0 without a
// predecessor, so no cycle and no foreign chunk can be walked.
std::expected<ChainRef, Error> ChainCache::walk(const ChainRef& known, ChunkIndex tip) const {
  if (ends_at(*known, tip)) return known;
  const auto word_of = [&](ChunkIndex chunk) {
    return ChunkWord::from_bits(chunk_words_[chunk.value()].load(std::memory_order_acquire));
  };
  if (tip.value() >= chunk_words_.size()) return std::unexpected(damaged(tip, "there is no such"));
  ChunkWord word = word_of(tip);
  const std::uint32_t ordinal = word.ordinal;
  if (ordinal >= chunk_words_.size()) {
    return std::unexpected(damaged(tip, "ordinal " + std::to_string(ordinal) + " is too large"));
  }
  if (ordinal < known->size) {  // an older tip than the one that is known
    if (known->chunks[ordinal] == tip) return known;
    return std::unexpected(damaged(tip, "is not the chunk known at its ordinal"));
  }

  const std::uint32_t size = ordinal + 1;
  auto longer =
      std::make_shared<Chain>(size <= known->capacity ? *known : copy_with_room(*known, size));
  longer->size = size;
  ChunkIndex chunk = tip;
  for (std::uint32_t at = ordinal;; --at) {
    if (word.ordinal != at || word.previous.has_value() != (at != 0)) {
      return std::unexpected(damaged(chunk, "its place contradicts the chunk after it"));
    }
    longer->chunks[at] = chunk;
    if (at == known->size) break;
    chunk = *word.previous;
    if (chunk.value() >= chunk_words_.size()) {
      return std::unexpected(damaged(chunk, "there is no such chunk"));
    }
    word = word_of(chunk);
  }
  if (known->size != 0 && *word.previous != known->chunks[known->size - 1]) {
    return std::unexpected(damaged(chunk, "does not follow the chunk known before it"));
  }
  return longer;
}

}  // namespace hotkv::client
