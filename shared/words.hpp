#pragma once
// The words that both sides meet on without a lock: their bits, and both halves of each protocol.
//
// Every exchange below is a 64-bit atomic. Three words decide everything:
//
//   head    daemon writes, clients read       {generation, tip}
//   length  writer and daemon exchange        {generation, tokens}
//   pin     its client writes, daemon reads   {slot, generation}
//
// PIN AGAINST RECYCLE (a store-buffer pair, so both sides need sequential consistency):
//
//   client                                  daemon
//   P1  pin  := {slot, g}      (seq_cst)    D1  head := {g+1, …}          (seq_cst)
//   P2  read head              (seq_cst)    D2  read every used pin word  (seq_cst)
//
//   In the single order of seq_cst operations either P1 comes before D2, then the daemon sees the
//   pin and keeps the old head's chunks; or D2 comes before P1, then D1 comes before P2 and the
//   client sees that generation g is over and unpins without having looked at a byte. The
//   high-water mark of a page is raised (seq_cst) before P1, so D2's bound covers the pin by the
//   same argument.
//
// PUBLISH AGAINST END OF A GENERATION (both are read-modify-writes of one word, so one is first):
//
//   writer   length: compare-and-swap {g, old} -> {g, new}   release: K and V come before it
//   daemon   length: exchange {g, any} -> {g+1, n}           acq_rel
//
//   If the writer is first, its tokens are in what the daemon's exchange returned. If the daemon is
//   first, the writer's compare fails: it was never told that the tokens were published.
//
// UNPIN: pin := 0 (release). The daemon's acquire of that 0 comes after every load and store the
//   client made to the chunks, so whoever gets the memory next cannot disturb or be disturbed.
//
// IDENTITY: id and epoch of a slot change only between a head store that frees the slot and a head
//   store that makes it live again, so the generation is their version: client loads head, then id
//   and epoch (acquire), pins, loads head again; same generation means same identity. The daemon
//   stores id and epoch with release after the freeing head store, so a client that read a new id
//   must find a new head at its second load.

#include <atomic>
#include <cstdint>
#include <optional>

#include <hotkv/types.hpp>

#include "shared/fault_point.hpp"

namespace hotkv {

using AtomicWord = std::atomic<std::uint64_t>;
static_assert(AtomicWord::is_always_lock_free && sizeof(AtomicWord) == 8,
              "words in shared memory must be plain eight-byte atomics");

// The last chunk of a chain, or the two states in which there is none.
// Bits: 0 = free (so zeroed memory is a free slot), 1 = live but empty, c + 2 = chunk c.
class Tip {
 public:
  static constexpr Tip free() { return Tip{0}; }
  static constexpr Tip empty() { return Tip{1}; }
  static constexpr Tip at(ChunkIndex chunk) { return Tip{chunk.value() + 2}; }
  static constexpr Tip from_bits(std::uint32_t bits) { return Tip{bits}; }
  [[nodiscard]] constexpr bool is_free() const { return bits_ == 0; }
  [[nodiscard]] constexpr bool is_chunk() const { return bits_ >= 2; }
  // Only if is_chunk().
  [[nodiscard]] constexpr ChunkIndex chunk() const { return ChunkIndex{bits_ - 2}; }
  [[nodiscard]] constexpr std::uint32_t bits() const { return bits_; }
  friend constexpr bool operator==(Tip, Tip) = default;

 private:
  constexpr explicit Tip(std::uint32_t bits) : bits_(bits) {}
  std::uint32_t bits_;
};

namespace word_detail {
constexpr std::uint64_t join(std::uint32_t high, std::uint32_t low) {
  return std::uint64_t{high} << 32 | low;
}
constexpr std::uint32_t high(std::uint64_t bits) {
  return static_cast<std::uint32_t>(bits >> 32);
}
constexpr std::uint32_t low(std::uint64_t bits) {
  return static_cast<std::uint32_t>(bits);
}
}  // namespace word_detail

// Head of a slot. Zero: generation 0, free.
struct HeadWord {
  Generation generation;
  Tip tip = Tip::free();
  [[nodiscard]] constexpr std::uint64_t bits() const {
    return word_detail::join(generation.value(), tip.bits());
  }
  static constexpr HeadWord from_bits(std::uint64_t bits) {
    return {Generation{word_detail::high(bits)}, Tip::from_bits(word_detail::low(bits))};
  }
  friend constexpr bool operator==(const HeadWord&, const HeadWord&) = default;
};

// Published length of a slot. Zero: generation 0, no tokens. Writers can store any bits: the daemon
// takes a value only after checking it against the head and the chain.
struct LengthWord {
  Generation generation;
  TokenCount tokens;
  [[nodiscard]] constexpr std::uint64_t bits() const {
    return word_detail::join(generation.value(), tokens.value());
  }
  static constexpr LengthWord from_bits(std::uint64_t bits) {
    return {Generation{word_detail::high(bits)}, TokenCount{word_detail::low(bits)}};
  }
  friend constexpr bool operator==(const LengthWord&, const LengthWord&) = default;
};

// A claim on one generation of one slot. Zero: no claim. Bits: {slot + 1, generation}.
struct PinWord {
  SlotIndex slot;
  Generation generation;
  [[nodiscard]] constexpr std::uint64_t bits() const {
    return word_detail::join(slot.value() + 1, generation.value());
  }
  // Nothing for a word that claims nothing. The slot is untrusted: any number can stand there.
  static constexpr std::optional<PinWord> from_bits(std::uint64_t bits) {
    if (word_detail::high(bits) == 0) return std::nullopt;
    return PinWord{SlotIndex{word_detail::high(bits) - 1}, Generation{word_detail::low(bits)}};
  }
  friend constexpr bool operator==(const PinWord&, const PinWord&) = default;
};

// A chunk's place in its chain: the chunk before it and its ordinal (first token / chunk_tokens).
// Written before the chunk is linked, untouched until nobody owns it. Bits: {previous + 1 | 0,
// ordinal}.
struct ChunkWord {
  std::optional<ChunkIndex> previous;
  std::uint32_t ordinal = 0;
  [[nodiscard]] constexpr std::uint64_t bits() const {
    return word_detail::join(previous ? previous->value() + 1 : 0, ordinal);
  }
  static constexpr ChunkWord from_bits(std::uint64_t bits) {
    const std::uint32_t previous = word_detail::high(bits);
    return {previous == 0 ? std::nullopt : std::optional(ChunkIndex{previous - 1}),
            word_detail::low(bits)};
  }
  friend constexpr bool operator==(const ChunkWord&, const ChunkWord&) = default;
};

// Touch word: when a slot was last used, in ticks of 16 ms of CLOCK_MONOTONIC, modulo 2^32 (2.2
// years). Written by any client; the daemon reads it as an age and only believes younger ages than
// its own knowledge, so a wild value can only mean "used lately".
inline constexpr std::uint32_t kTouchTickMs = 16;
[[nodiscard]] constexpr std::uint32_t touch_ticks(std::uint64_t monotonic_ms) {
  return static_cast<std::uint32_t>(monotonic_ms / kTouchTickMs);
}
// Age in milliseconds of a touch; a touch from the future has age 0.
[[nodiscard]] constexpr std::uint64_t touch_age_ms(std::uint32_t touched, std::uint64_t now_ms) {
  const std::uint32_t ticks = touch_ticks(now_ms) - touched;
  constexpr std::uint32_t kHalf = std::uint32_t{1} << 31;
  return ticks >= kHalf ? 0 : std::uint64_t{ticks} * kTouchTickMs;
}

// ---- the client's half --------------------------------------------------------------------------

[[nodiscard]] inline HeadWord load_head(const AtomicWord& head) {
  return HeadWord::from_bits(head.load(std::memory_order_seq_cst));
}

// Takes a pin word that claims nothing and claims `pin` with it, in one step (P1). The word's
// zero/non-zero is also what tells threads of one client apart: whoever swaps it in owns the word.
[[nodiscard]] inline bool claim_pin(AtomicWord& word, PinWord pin) {
  std::uint64_t unclaimed = 0;
  return word.compare_exchange_strong(unclaimed, pin.bits(), std::memory_order_seq_cst,
                                      std::memory_order_relaxed);
}

// Moves an owned pin word to another claim (P1 again).
inline void move_pin(AtomicWord& word, PinWord pin) {
  word.exchange(pin.bits(), std::memory_order_seq_cst);
}

inline void unpin(AtomicWord& word) {
  word.store(0, std::memory_order_release);
}

// What a pinned generation shows.
struct Snapshot {
  Tip tip = Tip::free();
  TokenCount length;
};

// P2: after `pin` of `generation` is stored. Nothing if the generation is over or about to be;
// then the caller unpins and looks at no byte. Otherwise the chain of `tip` stays as it is, bit for
// bit up to `length`, until the pin ends. The length is loaded before the head, and this last load
// of the head supplies the tip: a tip is only ever replaced by one that covers more tokens, so it
// covers the length that was loaded before it.
[[nodiscard]] inline std::optional<Snapshot> confirm_pin(const AtomicWord& head,
                                                         const AtomicWord& length,
                                                         Generation generation) {
  const auto published = LengthWord::from_bits(length.load(std::memory_order_acquire));
  HOTKV_FAULT_POINT("confirm-pin.between-length-and-head");
  const HeadWord now = load_head(head);
  if (now.generation != generation || now.tip.is_free() || published.generation != generation) {
    return std::nullopt;
  }
  return Snapshot{now.tip, published.tokens};
}

// Makes tokens [from, to) of `generation` visible. False if the generation is over or the length
// is not `from`; then nothing was published. The release orders every plain store of K and V before
// it; streaming stores need a store fence (sfence) before this call, for they are not ordered by
// it.
[[nodiscard]] inline bool publish(AtomicWord& length, Generation generation, TokenCount from,
                                  TokenCount to) {
  std::uint64_t expected = LengthWord{generation, from}.bits();
  return length.compare_exchange_strong(expected, LengthWord{generation, to}.bits(),
                                        std::memory_order_release, std::memory_order_relaxed);
}

// ---- the daemon's half --------------------------------------------------------------------------

// Ends what writers of the outgoing generation may publish. Returns the word as it was.
inline LengthWord exchange_length(AtomicWord& length, LengthWord next) {
  return LengthWord::from_bits(length.exchange(next.bits(), std::memory_order_acq_rel));
}

// D1.
inline void store_head(AtomicWord& head, HeadWord next) {
  head.store(next.bits(), std::memory_order_seq_cst);
}

// D2. The value is untrusted: range-check the slot; it can only mean "do not recycle".
[[nodiscard]] inline std::optional<PinWord> load_untrusted_pin(const AtomicWord& word) {
  return PinWord::from_bits(word.load(std::memory_order_seq_cst));
}

}  // namespace hotkv
