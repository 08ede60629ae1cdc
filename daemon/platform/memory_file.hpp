#pragma once
// Memory as a file: the one thing the daemon hands out.

#include <cstdint>
#include <expected>
#include <string>

#include <hotkv/error.hpp>

#include "shared/mapping.hpp"
#include "shared/unique_fd.hpp"

namespace hotkv::platform {

// Bytes [offset_bytes, offset_bytes + length_bytes) of a file.
struct ByteRange {
  std::uint64_t offset_bytes = 0;
  std::uint64_t length_bytes = 0;
};

// A memfd of fixed size and mode 0600, sealed against shrinking, growing and further seals: nobody
// who holds a descriptor can take bytes away under a mapping. Born sparse; a size costs nothing,
// allocated ranges cost memory. Gone with the last descriptor and mapping of it, in any process.
//
// Why not F_SEAL_FUTURE_WRITE, which would make readers' descriptors read-only for good: it also
// forbids punching holes, and no writer could map the file any more. Instead a reader gets a
// read-only description, and the mode keeps other users from reopening it for writing through
// /proc; a memfd is born with mode 0777.
//
// Const members are safe from several threads at once: they are single system calls.
class [[nodiscard]] MemoryFile {
 public:
  // `role` names the file in errors and in /proc ("arena"). Errors: invalid_argument (size 0 or too
  // large for a file), system_error. A size above RLIMIT_FSIZE raises SIGXFSZ, which the process
  // has to ignore to see the error.
  [[nodiscard]] static std::expected<MemoryFile, Error> create(std::string role,
                                                               std::uint64_t size_bytes);
  // Takes over a file that an earlier process made, by a description of its own. Errors:
  // shard_damaged if it is not such a file (its seals are the proof), system_error.
  [[nodiscard]] static std::expected<MemoryFile, Error> adopt(std::string role, UniqueFd fd);
  // The role with which a file was made: its name, which nobody can change. Empty if it is none of
  // ours.
  [[nodiscard]] static std::string role_of(int fd);

  [[nodiscard]] const std::string& role() const { return role_; }
  [[nodiscard]] std::uint64_t size_bytes() const { return size_bytes_; }
  // Tells it from every other file of its kind that exists at the same time.
  [[nodiscard]] std::expected<std::uint64_t, Error> inode() const;
  // Read-write; for mapping and lock queries.
  [[nodiscard]] int fd() const { return fd_.get(); }

  // A new open file description. Its access mode and its locks are its own, whoever gets it; a
  // duplicate would share both with the daemon.
  [[nodiscard]] std::expected<UniqueFd, Error> reopen(MapAccess access) const;

  // Backs the range with memory, keeping bytes that are there; new ones are zero. Going over a
  // cgroup's limit here does not fail, it kills: ask Headroom first.
  // Errors: memory_unavailable, invalid_argument (outside the file), system_error.
  [[nodiscard]] std::expected<void, Error> allocate(ByteRange range) const;

  // Gives the range's memory back; it reads as zero afterwards, in every mapping.
  // Errors: invalid_argument (outside the file), system_error.
  [[nodiscard]] std::expected<void, Error> punch(ByteRange range) const;

  // The kernel's account of the memory behind the file. Reading a hole adds to it, even through a
  // read-only mapping.
  [[nodiscard]] std::expected<std::uint64_t, Error> allocated_bytes() const;

 private:
  MemoryFile(std::string role, UniqueFd fd, std::uint64_t size_bytes);
  [[nodiscard]] std::expected<void, Error> change_backing(const char* operation, int mode,
                                                          ByteRange range) const;

  std::string role_;
  UniqueFd fd_;
  std::uint64_t size_bytes_ = 0;
};

}  // namespace hotkv::platform
