#pragma once
// A view of a file's memory in this process.

#include <sys/types.h>

#include <cstddef>
#include <cstdint>
#include <expected>
#include <memory>
#include <span>
#include <string_view>
#include <utility>

#include <hotkv/error.hpp>

namespace boost::interprocess {
class mapped_region;
}

namespace hotkv {

// What a descriptor or a mapping of it allows.
enum class MapAccess { read_only, read_write };

struct MappingOptions {
  std::uint64_t offset_bytes = 0;  // in the file; a multiple of the page size
  std::uint64_t size_bytes = 0;    // at least 1
  MapAccess access = MapAccess::read_only;
  // Places the mapping so that its addresses and the file's offsets agree modulo 2 MiB. Without
  // that the kernel cannot map a huge page of the file as one, even where the file has it.
  bool align_to_huge_page = false;
  // Asks for huge pages on first touch. A wish: see Mapping::huge_pages_advised().
  bool advise_huge_pages = false;
};

// A MAP_SHARED view of a descriptor, gone with this object. The descriptor may be closed meanwhile;
// the view keeps the open file description, and the OFD locks on it, alive.
//
// Never in core dumps (MADV_DONTDUMP: a crash must not write every tenant's bytes to a disk) and
// never in forked children (MADV_DONTFORK: a child would keep its parent's page lock alive). A fork
// by another thread between mmap and madvise still inherits the view; who maps a page while other
// threads may fork has to exclude that.
class [[nodiscard]] Mapping {
 public:
  // No view; bytes() is empty.
  Mapping();
  // `role` says in errors what was mapped ("arena"). The size is compared with the file's first:
  // a view past the end of a file maps well and dies of SIGBUS at the first touch.
  // Errors: invalid_argument (size 0, offset not on a page, wrapping range), shard_damaged (the
  // file is smaller than the range), system_error.
  [[nodiscard]] static std::expected<Mapping, Error> map(int fd, const MappingOptions& options,
                                                         std::string_view role);
  Mapping(Mapping&& other) noexcept;
  Mapping& operator=(Mapping&& other) noexcept;
  // In a forked child nothing is unmapped: the view is not there, and something of the child's own
  // may have been mapped at its address since.
  ~Mapping();

  // Writing through a read-only mapping ends the process with SIGSEGV.
  [[nodiscard]] std::span<std::byte> bytes() const { return bytes_; }
  // Whether huge pages were asked for and the kernel took the advice. It may still use small ones.
  [[nodiscard]] bool huge_pages_advised() const { return huge_pages_advised_; }

 private:
  std::unique_ptr<boost::interprocess::mapped_region> region_;
  std::span<std::byte> bytes_;
  pid_t owner_pid_ = 0;  // the process that has the view
  bool huge_pages_advised_ = false;
};

}  // namespace hotkv
