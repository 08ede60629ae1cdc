#pragma once
// A client's life as a record lock on its range of the pages file.
//
// The page is the client; the socket is only its telephone. The daemon opens a fresh description of
// the pages file, takes an OFD write lock on the client's range and passes that descriptor. The
// library maps it, marks the mapping MADV_DONTFORK and closes the descriptor. From then on the
// mapping alone keeps the description, and the description keeps the lock:
//   - through SIGSTOP, a lost connection, the daemon's death and adoption;
//   - not into forked children, which do not inherit the mapping;
//   - not past exit, kill or exec, which end the mapping.
// Neither a pid nor a hang-up is as good: a client that executes another program while a forked
// child holds its socket shows neither, and its pid lives on.
//
// OFD locks and not POSIX ones: a POSIX lock belongs to a process and is dropped when that process
// closes any descriptor of the file. Not flock either: it has no ranges.

#include <expected>

#include <hotkv/error.hpp>

#include "daemon/platform/memory_file.hpp"
#include "shared/unique_fd.hpp"

namespace hotkv::platform {

// A fresh read-write description of `pages` that holds the lock on `range`. The daemon passes it
// and closes its own copy: kept open, it would keep the client alive.
// Errors: session_busy if another description holds a lock in the range, system_error.
[[nodiscard]] std::expected<UniqueFd, Error> lock_range(const MemoryFile& pages, ByteRange range);

// Whether some description other than that of `fd` holds a lock in the range; about 1 µs. Ask with
// a description that never locks, such as MemoryFile::fd(): a description does not see its own
// locks.
[[nodiscard]] std::expected<bool, Error> is_range_locked(int fd, ByteRange range);

}  // namespace hotkv::platform
