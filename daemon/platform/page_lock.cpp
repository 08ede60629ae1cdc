#include "daemon/platform/page_lock.hpp"

#include <fcntl.h>

#include <cerrno>
#include <string>
#include <utility>

namespace hotkv::platform {
namespace {

struct flock write_lock(ByteRange range) {
  struct flock lock {};  // l_pid stays 0, as OFD locks demand
  lock.l_type = F_WRLCK;
  lock.l_whence = SEEK_SET;
  lock.l_start = static_cast<off_t>(range.offset_bytes);
  lock.l_len = static_cast<off_t>(range.length_bytes);
  return lock;
}

// A length of 0 would mean "to the end of the file" and lock every other client's range.
std::expected<void, Error> check_length(ByteRange range) {
  if (range.length_bytes != 0) return {};
  return std::unexpected(
      Error{ErrorCode::invalid_argument, "lock", "pages", "a range of 0 bytes", 0});
}

}  // namespace

std::expected<UniqueFd, Error> lock_range(const MemoryFile& pages, ByteRange range) {
  if (auto valid = check_length(range); !valid) return std::unexpected(std::move(valid.error()));
  auto fd = pages.reopen(MapAccess::read_write);
  if (!fd) return fd;
  struct flock lock = write_lock(range);
  if (::fcntl(fd->get(), F_OFD_SETLK, &lock) == 0) return fd;
  Error error = system_error("lock", pages.role());
  if (error.os_errno == EAGAIN || error.os_errno == EACCES) {
    error.code = ErrorCode::session_busy;
    error.cause = "the range at offset " + std::to_string(range.offset_bytes) + " has a live owner";
  }
  return std::unexpected(std::move(error));
}

std::expected<bool, Error> is_range_locked(int fd, ByteRange range) {
  if (auto valid = check_length(range); !valid) return std::unexpected(std::move(valid.error()));
  struct flock lock = write_lock(range);
  if (::fcntl(fd, F_OFD_GETLK, &lock) != 0) {
    return std::unexpected(system_error("query the lock of", "pages"));
  }
  return lock.l_type != F_UNLCK;
}

}  // namespace hotkv::platform
