#pragma once
// Forks and threads that allocate, kept apart: a child that is forked while another thread is
// inside the allocator finds it locked for good. The C library unlocks its own in the child, the
// allocator of a sanitizer does not.

#include <shared_mutex>

namespace hotkv::testing {

// Threads of a test hold it shared while they work; a fork holds it alone.
inline std::shared_mutex& fork_gate() {
  static std::shared_mutex gate;
  return gate;
}

}  // namespace hotkv::testing
