#pragma once
// The one door through which the core stores to a shard's files.
//
// What the files say after any single store must be enough for the next daemon (see rebuild.hpp),
// so each store is one atomic word, compiled in program order (release or stronger), and a test can
// stop the core before any one of them.

#include <atomic>
#include <cstdint>
#include <functional>

#include "shared/fault_point.hpp"
#include "shared/words.hpp"

namespace hotkv::core {

class StoreGate {
 public:
  // Called before each store. It may throw: that core is then thrown away, as a killed daemon is.
  void set_probe(std::function<void()> probe) { probe_ = std::move(probe); }

  void store(AtomicWord& word, std::uint64_t value) {
    probe();
    word.store(value, std::memory_order_release);
  }
  void store(std::atomic<std::uint32_t>& word, std::uint32_t value) {
    probe();
    word.store(value, std::memory_order_release);
  }
  void store_head(AtomicWord& head, HeadWord next) {
    probe();
    hotkv::store_head(head, next);
  }
  // For the read-modify-writes of words.hpp, which the caller does right after.
  void probe() const {
    HOTKV_DIE_IF_PLANTED("die-at-store");
    if (probe_) [[unlikely]]
      probe_();
  }

 private:
  std::function<void()> probe_;
};

}  // namespace hotkv::core
