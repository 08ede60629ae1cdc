#pragma once
// The chunks of a shard: who owns how many, which are free, which have memory.

#include <cstdint>
#include <optional>
#include <set>
#include <unordered_set>
#include <vector>

#include <hotkv/types.hpp>

#include "daemon/core/shard_tables.hpp"
#include "daemon/core/store_gate.hpp"

namespace hotkv::core {

// An owner of a chunk is a head, a kept head, or a child chunk. Free = no owner; unref() is the one
// place where a chunk becomes free. Written in place = exactly one owner.
//
// Owner counts, free chunks and the states of extents are private to the daemon and rebuilt.
class ChunkPool {
 public:
  ChunkPool(const ShardTables& tables, StoreGate& gate) : tables_(tables), gate_(gate) {}

  // ---- chunks with memory
  [[nodiscard]] std::uint32_t free_count() const {
    return static_cast<std::uint32_t>(free_.size());
  }
  [[nodiscard]] bool is_free(ChunkIndex chunk) const { return free_.contains(chunk.value()); }
  // A free chunk, lowest first; it has no owner yet and is nobody else's. Only if free_count() > 0.
  [[nodiscard]] ChunkIndex take();
  // The same for the i-th chunk of an extent; only if it is free.
  [[nodiscard]] ChunkIndex take_from(ExtentIndex extent, std::uint32_t i);
  // Gives back what take() gave and nobody came to own.
  void give_back(ChunkIndex chunk);

  // Writes a taken chunk's place in the chain of a slot, and seals it; before it is linked.
  void place(SlotIndex slot, ChunkIndex chunk, ChunkWord word);
  [[nodiscard]] ChunkWord word(ChunkIndex chunk) const;
  void ref(ChunkIndex chunk);
  // One owner fewer; a chunk without an owner is free and stops owning the one before it.
  void unref(ChunkIndex chunk);
  [[nodiscard]] std::uint32_t owners(ChunkIndex chunk) const { return owners_[chunk.value()]; }

  // The chunk of the chain of `tip` that holds token `length - 1`; empty where there is none.
  [[nodiscard]] Tip ancestor(Tip tip, TokenCount length) const;
  // Tokens that fit in the chain.
  [[nodiscard]] TokenCount capacity(Tip tip) const;
  // Chunks from the tip on that would be free if their head let go: those with one owner.
  [[nodiscard]] std::vector<ChunkIndex> exclusive_run(Tip tip) const;

  // ---- extents
  enum class ExtentState : std::uint8_t { absent, arriving, present, leaving };
  [[nodiscard]] std::uint32_t absent_count() const;
  // Every extent from here on is absent, and was never anything else.
  [[nodiscard]] std::uint32_t known_extents() const {
    return static_cast<std::uint32_t>(states_.size());
  }
  [[nodiscard]] std::uint32_t present_count() const { return present_count_; }
  [[nodiscard]] std::uint32_t arriving_count() const { return arriving_count_; }
  [[nodiscard]] std::uint32_t leaving_count() const { return leaving_count_; }
  // absent -> arriving, lowest first. Only if absent_count() > 0.
  [[nodiscard]] ExtentIndex begin_arrival();
  // arriving -> present (its chunks are free) or absent.
  void end_arrival(ExtentIndex extent, bool arrived);
  // Extents of which every chunk is free.
  [[nodiscard]] const std::set<std::uint32_t>& idle_extents() const { return idle_; }
  // present and idle -> leaving -> absent, or present again.
  void begin_departure(ExtentIndex extent);
  void end_departure(ExtentIndex extent, bool departed);
  [[nodiscard]] ExtentState state(ExtentIndex extent) const;
  // Chunks of an extent that are in use (owned or taken).
  [[nodiscard]] std::uint32_t used_in(ExtentIndex extent) const { return used_[extent.value()]; }

  // ---- rebuild
  // Forgets everything private; the extents whose bit is set have memory, and all their chunks are
  // free.
  void reset();
  // Whether the tables say that the extent has memory: what the next daemon will believe.
  [[nodiscard]] bool is_accounted(ExtentIndex extent) const;
  // One more head of this chain: counts the tip, and below it every chunk not counted yet.
  void adopt_chain(Tip tip);
  // Takes the seals from chunks that nobody owns: the last daemon died between the two.
  void unseal_free();
  // Is this chain as it was written for this slot: chunks in range, with memory and with the slot's
  // seal, ordinals falling by one to 0? Chains of two slots that are sound do not meet.
  // `sound` remembers what was walked: many heads share a chain, and each chunk is walked once.
  using SoundChunks = std::unordered_set<std::uint32_t>;
  [[nodiscard]] bool is_sound(SlotIndex slot, Tip tip, SoundChunks& sound) const;

 private:
  void grow_to(ExtentIndex extent);
  void become_present(ExtentIndex extent);
  void account(ExtentIndex extent, bool has_memory);
  void take_specific(ChunkIndex chunk);
  void unseal(ChunkIndex chunk);

  const ShardTables& tables_;
  StoreGate& gate_;
  // By chunk and by extent, as far as extents were ever present.
  std::vector<std::uint32_t> owners_;
  std::vector<std::uint32_t> used_;
  std::vector<ExtentState> states_;
  std::set<std::uint32_t> free_;    // chunks
  std::set<std::uint32_t> idle_;    // extents
  std::set<std::uint32_t> absent_;  // extents below states_.size()
  std::uint32_t present_count_ = 0;
  std::uint32_t arriving_count_ = 0;
  std::uint32_t leaving_count_ = 0;
};

}  // namespace hotkv::core
