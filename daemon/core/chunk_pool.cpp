#include "daemon/core/chunk_pool.hpp"

#include <algorithm>
#include <bit>

#include "daemon/core/seals.hpp"
#include "shared/check.hpp"

namespace hotkv::core {

// ---- chunks -------------------------------------------------------------------------------------

void ChunkPool::take_specific(ChunkIndex chunk) {
  free_.erase(chunk.value());
  const ExtentIndex extent = tables_.geometry().extent_of(chunk);
  if (used_[extent.value()]++ == 0) idle_.erase(extent.value());
}

ChunkIndex ChunkPool::take() {
  HOTKV_CHECK(!free_.empty(), "take from an empty pool");
  const ChunkIndex chunk{*free_.begin()};
  take_specific(chunk);
  return chunk;
}

ChunkIndex ChunkPool::take_from(ExtentIndex extent, std::uint32_t i) {
  const ChunkIndex chunk{extent.value() * tables_.geometry().chunks_per_extent + i};
  HOTKV_CHECK(free_.contains(chunk.value()), "a chunk that is not free is taken");
  take_specific(chunk);
  return chunk;
}

void ChunkPool::give_back(ChunkIndex chunk) {
  HOTKV_CHECK(owners_[chunk.value()] == 0, "an owned chunk is given back");
  free_.insert(chunk.value());
  const ExtentIndex extent = tables_.geometry().extent_of(chunk);
  if (--used_[extent.value()] == 0) idle_.insert(extent.value());
}

void ChunkPool::place(SlotIndex slot, ChunkIndex chunk, ChunkWord word) {
  gate_.store(tables_.chunk_word(chunk), word.bits());
  gate_.store(tables_.chunk_seal(chunk), chunk_seal(tables_.header(), slot, chunk, word));
}

void ChunkPool::unseal(ChunkIndex chunk) {
  AtomicWord& seal = tables_.chunk_seal(chunk);
  if (seal.load(std::memory_order_relaxed) != 0) gate_.store(seal, 0);
}

ChunkWord ChunkPool::word(ChunkIndex chunk) const {
  return ChunkWord::from_bits(tables_.chunk_word(chunk).load(std::memory_order_relaxed));
}

void ChunkPool::ref(ChunkIndex chunk) {
  ++owners_[chunk.value()];
}

void ChunkPool::unref(ChunkIndex chunk) {
  std::optional<ChunkIndex> owned = chunk;
  while (owned && --owners_[owned->value()] == 0) {
    const std::optional<ChunkIndex> previous = word(*owned).previous;
    unseal(*owned);
    give_back(*owned);
    owned = previous;
  }
}

Tip ChunkPool::ancestor(Tip tip, TokenCount length) const {
  if (length.value() == 0) return Tip::empty();
  const std::uint32_t ordinal = (length.value() - 1) / tables_.geometry().chunk_tokens;
  while (tip.is_chunk()) {
    const ChunkWord at = word(tip.chunk());
    if (at.ordinal <= ordinal) return tip;
    tip = at.previous ? Tip::at(*at.previous) : Tip::empty();
  }
  return Tip::empty();
}

TokenCount ChunkPool::capacity(Tip tip) const {
  if (!tip.is_chunk()) return TokenCount{0};
  const std::uint64_t tokens =
      (std::uint64_t{word(tip.chunk()).ordinal} + 1) * tables_.geometry().chunk_tokens;
  return TokenCount{static_cast<std::uint32_t>(std::min<std::uint64_t>(tokens, kContextTokensMax))};
}

std::vector<ChunkIndex> ChunkPool::exclusive_run(Tip tip) const {
  std::vector<ChunkIndex> run;
  while (tip.is_chunk() && owners(tip.chunk()) == 1) {
    run.push_back(tip.chunk());
    const auto previous = word(tip.chunk()).previous;
    tip = previous ? Tip::at(*previous) : Tip::empty();
  }
  return run;
}

// ---- extents ------------------------------------------------------------------------------------

std::uint32_t ChunkPool::absent_count() const {
  return tables_.geometry().extent_count - static_cast<std::uint32_t>(states_.size()) +
         static_cast<std::uint32_t>(absent_.size());
}

void ChunkPool::grow_to(ExtentIndex extent) {
  const std::size_t count = std::size_t{extent.value()} + 1;
  for (std::size_t i = states_.size(); i < count; ++i)
    absent_.insert(static_cast<std::uint32_t>(i));
  if (states_.size() >= count) return;
  states_.resize(count, ExtentState::absent);
  used_.resize(count, 0);
  owners_.resize(count * tables_.geometry().chunks_per_extent, 0);
}

ExtentIndex ChunkPool::begin_arrival() {
  HOTKV_CHECK(absent_count() > 0, "no extent is absent");
  if (absent_.empty()) grow_to(ExtentIndex{static_cast<std::uint32_t>(states_.size())});
  const ExtentIndex extent{*absent_.begin()};
  absent_.erase(absent_.begin());
  states_[extent.value()] = ExtentState::arriving;
  ++arriving_count_;
  return extent;
}

void ChunkPool::end_arrival(ExtentIndex extent, bool arrived) {
  HOTKV_CHECK(state(extent) == ExtentState::arriving, "an extent arrives that was not ordered");
  --arriving_count_;
  if (!arrived) {
    states_[extent.value()] = ExtentState::absent;
    absent_.insert(extent.value());
    return;
  }
  account(extent, true);
  become_present(extent);
  // Only where the tables were damaged are there seals in memory that had gone.
  const std::uint32_t per_extent = tables_.geometry().chunks_per_extent;
  for (std::uint32_t i = 0; i < per_extent; ++i) {
    unseal(ChunkIndex{extent.value() * per_extent + i});
  }
}

void ChunkPool::become_present(ExtentIndex extent) {
  states_[extent.value()] = ExtentState::present;
  ++present_count_;
  idle_.insert(extent.value());
  const std::uint32_t per_extent = tables_.geometry().chunks_per_extent;
  for (std::uint32_t i = 0; i < per_extent; ++i) free_.insert(extent.value() * per_extent + i);
}

void ChunkPool::begin_departure(ExtentIndex extent) {
  HOTKV_CHECK(idle_.contains(extent.value()), "an extent in use departs");
  account(extent, false);
  idle_.erase(extent.value());
  const std::uint32_t per_extent = tables_.geometry().chunks_per_extent;
  for (std::uint32_t i = 0; i < per_extent; ++i) free_.erase(extent.value() * per_extent + i);
  states_[extent.value()] = ExtentState::leaving;
  --present_count_;
  ++leaving_count_;
}

void ChunkPool::end_departure(ExtentIndex extent, bool departed) {
  HOTKV_CHECK(state(extent) == ExtentState::leaving, "an extent departs that was not ordered to");
  --leaving_count_;
  if (departed) {
    states_[extent.value()] = ExtentState::absent;
    absent_.insert(extent.value());
    return;
  }
  states_[extent.value()] = ExtentState::arriving;
  ++arriving_count_;
  end_arrival(extent, true);
}

// Set when the memory is there and not before, cleared before any of it can be gone: whoever reads
// the bit after a death at any instruction finds memory behind it.
void ChunkPool::account(ExtentIndex extent, bool has_memory) {
  AtomicWord& word = tables_.extent_bits()[extent.value() / 64];
  const std::uint64_t bit = std::uint64_t{1} << (extent.value() % 64);
  const std::uint64_t bits = word.load(std::memory_order_relaxed);
  gate_.store(word, has_memory ? bits | bit : bits & ~bit);
}

bool ChunkPool::is_accounted(ExtentIndex extent) const {
  const std::uint64_t bits =
      tables_.extent_bits()[extent.value() / 64].load(std::memory_order_relaxed);
  return (bits >> (extent.value() % 64) & 1) != 0;
}

ChunkPool::ExtentState ChunkPool::state(ExtentIndex extent) const {
  return extent.value() < states_.size() ? states_[extent.value()] : ExtentState::absent;
}

// ---- rebuild ------------------------------------------------------------------------------------

void ChunkPool::reset() {
  owners_.clear();
  used_.clear();
  states_.clear();
  free_.clear();
  idle_.clear();
  absent_.clear();
  present_count_ = arriving_count_ = leaving_count_ = 0;
  // Word by word: most of a large arena was never used.
  const std::uint32_t extent_count = tables_.geometry().extent_count;
  for (std::uint64_t word = 0; word < extent_words(extent_count); ++word) {
    std::uint64_t bits = tables_.extent_bits()[word].load(std::memory_order_relaxed);
    for (; bits != 0; bits &= bits - 1) {
      const std::uint64_t i = word * 64 + static_cast<std::uint64_t>(std::countr_zero(bits));
      if (i >= extent_count) break;  // of damaged tables
      const ExtentIndex extent{static_cast<std::uint32_t>(i)};
      grow_to(extent);
      absent_.erase(extent.value());
      become_present(extent);
    }
  }
}

void ChunkPool::adopt_chain(Tip tip) {
  if (!tip.is_chunk()) return;
  std::optional<ChunkIndex> owned = tip.chunk();
  while (owned) {
    const bool counted_before = owners(*owned) > 0;
    ref(*owned);
    if (counted_before) return;  // what it owns below is counted once, by it
    take_specific(*owned);
    owned = word(*owned).previous;
  }
}

void ChunkPool::unseal_free() {
  for (const std::uint32_t chunk : free_) unseal(ChunkIndex{chunk});
}

bool ChunkPool::is_sound(SlotIndex slot, Tip tip, SoundChunks& sound) const {
  if (!tip.is_chunk()) return true;
  std::vector<std::uint32_t> walked;
  std::optional<ChunkIndex> at = tip.chunk();
  std::optional<std::uint32_t> above;
  while (at) {
    if (at->value() >= tables_.geometry().chunk_count ||
        state(tables_.geometry().extent_of(*at)) != ExtentState::present) {
      return false;
    }
    const ChunkWord here = word(*at);
    if (tables_.chunk_seal(*at).load(std::memory_order_relaxed) !=
        chunk_seal(tables_.header(), slot, *at, here)) {
      return false;
    }
    if (above && here.ordinal + 1 != *above) return false;
    if ((here.ordinal == 0) != !here.previous.has_value()) return false;
    if (sound.contains(at->value())) break;
    walked.push_back(at->value());
    above = here.ordinal;
    at = here.previous;
  }
  sound.insert(walked.begin(), walked.end());
  return true;
}

}  // namespace hotkv::core
