#pragma once
// The pin words of this client's page, shared out among the threads of this process.

#include <atomic>
#include <cstdint>
#include <optional>
#include <utility>

#include "shared/layout.hpp"
#include "shared/words.hpp"

namespace hotkv::client {

// Thread-safe and without a lock: a pin word belongs to whoever swapped it from zero.
class PinWords {
 public:
  explicit PinWords(ClientPage& page) : page_(&page) {}

  // Claims a generation of a slot with some free word (P1 of words.hpp). Nothing if every word is
  // in use, which takes one pass over them to find out. The caller goes on with confirm_pin.
  [[nodiscard]] std::optional<std::uint32_t> claim(PinWord pin) {
    std::uint32_t& hint = start_hint();
    for (std::uint32_t tried = 0; tried < kPinsPerPage; ++tried) {
      const std::uint32_t index = (hint + tried) % kPinsPerPage;
      AtomicWord& word = page_->pins[index];
      if (word.load(std::memory_order_relaxed) != 0) continue;
      raise_high_water(index + 1);
      if (!claim_pin(word, pin)) continue;
      hint = index;
      return index;
    }
    return std::nullopt;
  }

  void unpin(std::uint32_t index) { hotkv::unpin(page_->pins[index]); }

 private:
  // The daemon scans words below the mark, so the mark comes before the claim in the one order of
  // seq_cst operations. Where another thread raised it, the acquire load makes its raise come
  // before this thread's claim in that order too.
  void raise_high_water(std::uint32_t used) {
    std::uint32_t mark = page_->high_water.load(std::memory_order_acquire);
    while (mark < used && !page_->high_water.compare_exchange_weak(
                              mark, used, std::memory_order_seq_cst, std::memory_order_acquire)) {
    }
  }

  // Where this thread looks first: threads begin a cache line of words apart, and each comes back
  // to the word it used last.
  static std::uint32_t& start_hint() {
    constexpr std::uint32_t kPinsPerCacheLine = 8;
    static std::atomic<std::uint32_t> threads{0};
    thread_local std::uint32_t hint =
        threads.fetch_add(1, std::memory_order_relaxed) * kPinsPerCacheLine % kPinsPerPage;
    return hint;
  }

  ClientPage* page_;
};

// A claimed pin word that unpins on destruction, for the way between claim and View or Writer.
class Pin {
 public:
  Pin(PinWords& words, std::uint32_t index) : words_(&words), index_(index) {}
  Pin(Pin&& other) noexcept : words_(std::exchange(other.words_, nullptr)), index_(other.index_) {}
  Pin& operator=(Pin&&) = delete;
  ~Pin() {
    if (words_ != nullptr) words_->unpin(index_);
  }
  // Hands the word over; the caller unpins it.
  [[nodiscard]] std::uint32_t release() && {
    words_ = nullptr;
    return index_;
  }

 private:
  PinWords* words_;
  std::uint32_t index_;
};

}  // namespace hotkv::client
