#pragma once
// Forks and threads that allocate, kept apart: a child that is forked while another thread is
// inside the allocator finds it locked for good. The C library unlocks its own in the child, the
// allocator of a sanitizer does not.

#include <mutex>

namespace hotkv::testing {

// Held by a thread of a test while it works, and by whoever forks. A plain mutex, which the child
// may unlock as well; a shared one remembers its owner by a number that the child has not.
inline std::mutex& fork_gate() {
  static std::mutex gate;
  return gate;
}

}  // namespace hotkv::testing
