#include "daemon/platform/memory_file.hpp"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <limits>
#include <string_view>
#include <utility>

namespace hotkv::platform {
namespace {

// Not in Debian 12's headers; the kernel has it since 6.3.
constexpr unsigned kNoExecSeal = 0x0008U;
constexpr int kSeals = F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL;
// The kernel takes names of up to 249 bytes; only /proc shows them.
constexpr std::size_t kNameBytesMax = 200;
constexpr const char* kNamePrefix = "hotkv-";

UniqueFd make_memfd(const std::string& role) {
  const std::string name = (kNamePrefix + role).substr(0, kNameBytesMax);
  const unsigned flags = MFD_CLOEXEC | MFD_ALLOW_SEALING;
  UniqueFd fd(::memfd_create(name.c_str(), flags | kNoExecSeal));
  if (!fd && errno == EINVAL) fd.reset(::memfd_create(name.c_str(), flags));
  return fd;
}

}  // namespace

MemoryFile::MemoryFile(std::string role, UniqueFd fd, std::uint64_t size_bytes)
    : role_(std::move(role)), fd_(std::move(fd)), size_bytes_(size_bytes) {}

std::expected<MemoryFile, Error> MemoryFile::create(std::string role, std::uint64_t size_bytes) {
  if (size_bytes == 0 || size_bytes > std::uint64_t{std::numeric_limits<off_t>::max()}) {
    return std::unexpected(Error{ErrorCode::invalid_argument, "create", std::move(role),
                                 std::to_string(size_bytes) + " bytes is no size of a file", 0});
  }
  UniqueFd fd = make_memfd(role);
  if (!fd) return std::unexpected(system_error("memfd_create", std::move(role)));
  if (::fchmod(fd.get(), 0600) != 0) {
    return std::unexpected(system_error("fchmod", std::move(role)));
  }
  if (::ftruncate(fd.get(), static_cast<off_t>(size_bytes)) != 0) {
    return std::unexpected(system_error("ftruncate", std::move(role)));
  }
  if (::fcntl(fd.get(), F_ADD_SEALS, kSeals) != 0) {
    return std::unexpected(system_error("seal", std::move(role)));
  }
  return MemoryFile(std::move(role), std::move(fd), size_bytes);
}

std::expected<MemoryFile, Error> MemoryFile::adopt(std::string role, UniqueFd fd) {
  struct stat status {};
  if (::fstat(fd.get(), &status) != 0) {
    return std::unexpected(system_error("adopt", std::move(role)));
  }
  // Of all files only a memfd has seals, and only its creator can have set the last one.
  const int seals = ::fcntl(fd.get(), F_GET_SEALS);
  const int flags = ::fcntl(fd.get(), F_GETFL);
  const bool is_ours = seals >= 0 && (seals & kSeals) == kSeals && (flags & O_ACCMODE) == O_RDWR &&
                       status.st_size > 0;
  if (!is_ours) {
    return std::unexpected(Error{ErrorCode::shard_damaged, "adopt", std::move(role),
                                 "not a sealed read-write memory file", 0});
  }
  // The description that came may hold locks and be shared: what is asked through it would not see
  // them.
  const MemoryFile came(role, std::move(fd), static_cast<std::uint64_t>(status.st_size));
  auto own = came.reopen(MapAccess::read_write);
  if (!own) return std::unexpected(std::move(own.error()));
  return MemoryFile(std::move(role), *std::move(own), came.size_bytes());
}

std::string MemoryFile::role_of(int fd) {
  const std::string link = "/proc/self/fd/" + std::to_string(fd);
  char target[256];
  const ssize_t size = ::readlink(link.c_str(), target, sizeof target);
  if (size <= 0) return {};
  std::string_view name(target, static_cast<std::size_t>(size));
  const std::string prefix = std::string("/memfd:") + kNamePrefix;
  constexpr std::string_view kSuffix = " (deleted)";
  if (!name.starts_with(prefix) || !name.ends_with(kSuffix)) return {};
  name.remove_prefix(prefix.size());
  name.remove_suffix(kSuffix.size());
  return std::string(name);
}

std::expected<std::uint64_t, Error> MemoryFile::inode() const {
  struct stat status {};
  if (::fstat(fd_.get(), &status) != 0) return std::unexpected(system_error("fstat", role_));
  return static_cast<std::uint64_t>(status.st_ino);
}

std::expected<UniqueFd, Error> MemoryFile::reopen(MapAccess access) const {
  const std::string path = "/proc/self/fd/" + std::to_string(fd_.get());
  const int flags = access == MapAccess::read_write ? O_RDWR : O_RDONLY;
  UniqueFd fd(::open(path.c_str(), flags | O_CLOEXEC));
  if (!fd) return std::unexpected(system_error("reopen", role_));
  return fd;
}

std::expected<void, Error> MemoryFile::allocate(ByteRange range) const {
  return change_backing("allocate", 0, range);
}

std::expected<void, Error> MemoryFile::punch(ByteRange range) const {
  return change_backing("punch", FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, range);
}

std::expected<void, Error> MemoryFile::change_backing(const char* operation, int mode,
                                                      ByteRange range) const {
  if (range.length_bytes == 0 || range.offset_bytes > size_bytes_ ||
      range.length_bytes > size_bytes_ - range.offset_bytes) {
    return std::unexpected(Error{ErrorCode::invalid_argument, operation, role_,
                                 std::to_string(range.length_bytes) + " bytes at offset " +
                                     std::to_string(range.offset_bytes) + " of " +
                                     std::to_string(size_bytes_),
                                 0});
  }
  for (;;) {
    if (::fallocate(fd_.get(), mode, static_cast<off_t>(range.offset_bytes),
                    static_cast<off_t>(range.length_bytes)) == 0) {
      return {};
    }
    if (errno == EINTR) continue;  // the kernel has undone its part of the range
    Error error = system_error(operation, role_);
    if (error.os_errno == ENOSPC || error.os_errno == ENOMEM) {
      error.code = ErrorCode::memory_unavailable;
    }
    return std::unexpected(std::move(error));
  }
}

std::expected<std::uint64_t, Error> MemoryFile::allocated_bytes() const {
  struct stat status {};
  if (::fstat(fd_.get(), &status) != 0) return std::unexpected(system_error("fstat", role_));
  return static_cast<std::uint64_t>(status.st_blocks) * 512;  // st_blocks counts 512 bytes always
}

}  // namespace hotkv::platform
