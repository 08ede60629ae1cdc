#include "shared/mapping.hpp"

#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <exception>
#include <limits>
#include <string>

#include <boost/interprocess/mapped_region.hpp>

namespace hotkv {
namespace {

namespace bip = boost::interprocess;

constexpr std::size_t kHugePageBytes = std::size_t{2} << 20;

// What Boost asks of a thing it maps: the descriptor, and that it is no System V segment.
class DescriptorToMap {
 public:
  explicit DescriptorToMap(int fd) : fd_(fd) {}
  [[nodiscard]] bip::mapping_handle_t get_mapping_handle() const { return {fd_, false}; }

 private:
  int fd_;
};

Error mapping_error(ErrorCode code, std::string_view role, std::string cause) {
  return Error{code, "map", std::string(role), std::move(cause), 0};
}

// The range must lie in the file as it is now; memory files are sealed, so it stays so.
std::expected<void, Error> check_range(int fd, const MappingOptions& options,
                                       std::string_view role) {
  const auto page_bytes = static_cast<std::uint64_t>(::sysconf(_SC_PAGESIZE));
  const std::uint64_t offset = options.offset_bytes;
  const std::uint64_t size = options.size_bytes;
  if (size == 0) {
    return std::unexpected(mapping_error(ErrorCode::invalid_argument, role, "size is 0 bytes"));
  }
  if (offset % page_bytes != 0) {
    return std::unexpected(mapping_error(
        ErrorCode::invalid_argument, role,
        "offset " + std::to_string(offset) + " is no multiple of " + std::to_string(page_bytes)));
  }
  struct stat status {};
  if (::fstat(fd, &status) != 0) return std::unexpected(system_error("fstat", std::string(role)));
  const auto file_bytes = static_cast<std::uint64_t>(status.st_size);
  if (offset > file_bytes || size > file_bytes - offset) {
    return std::unexpected(mapping_error(ErrorCode::shard_damaged, role,
                                         "needed " + std::to_string(size) + " bytes at offset " +
                                             std::to_string(offset) + ", the file has " +
                                             std::to_string(file_bytes)));
  }
  return {};
}

// Reserves `size` bytes of address space that agree with `offset` modulo 2 MiB. The mapping is then
// made over the reservation: a mere hint could be taken by another thread in between.
std::expected<std::byte*, Error> reserve_aligned(std::size_t size, std::uint64_t offset,
                                                 std::string_view role) {
  const std::size_t reserved = size + kHugePageBytes;
  void* base =
      ::mmap(nullptr, reserved, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (base == MAP_FAILED) return std::unexpected(system_error("reserve", std::string(role)));
  const auto start = reinterpret_cast<std::uintptr_t>(base);
  const std::size_t head =
      (static_cast<std::size_t>(offset) - static_cast<std::size_t>(start)) % kHugePageBytes;
  auto* aligned = static_cast<std::byte*>(base) + head;
  if (head != 0) ::munmap(base, head);
  ::munmap(aligned + size, reserved - head - size);
  return aligned;
}

}  // namespace

Mapping::Mapping() = default;

Mapping::Mapping(Mapping&& other) noexcept
    : region_(std::move(other.region_)),
      bytes_(std::exchange(other.bytes_, {})),
      owner_pid_(other.owner_pid_),
      huge_pages_advised_(std::exchange(other.huge_pages_advised_, false)) {}

Mapping& Mapping::operator=(Mapping&& other) noexcept {
  Mapping taken(std::move(other));
  std::swap(region_, taken.region_);
  std::swap(bytes_, taken.bytes_);
  std::swap(owner_pid_, taken.owner_pid_);
  std::swap(huge_pages_advised_, taken.huge_pages_advised_);
  return *this;
}

Mapping::~Mapping() {
  if (region_ != nullptr && owner_pid_ != ::getpid()) (void)region_.release();
}

std::expected<Mapping, Error> Mapping::map(int fd, const MappingOptions& options,
                                           std::string_view role) {
  if (auto in_file = check_range(fd, options, role); !in_file) {
    return std::unexpected(std::move(in_file.error()));
  }
  const auto page_bytes = static_cast<std::size_t>(::sysconf(_SC_PAGESIZE));
  const auto size = static_cast<std::size_t>(options.size_bytes);
  // A file's size fits in 63 bits, so neither this nor the reservation's slack can wrap.
  const std::size_t mapped_size = (size + page_bytes - 1) / page_bytes * page_bytes;
  std::byte* address = nullptr;
  if (options.align_to_huge_page) {
    auto reserved = reserve_aligned(mapped_size, options.offset_bytes, role);
    if (!reserved) return std::unexpected(std::move(reserved.error()));
    address = *reserved;
  }

  Mapping mapping;
  mapping.owner_pid_ = ::getpid();
  try {
    mapping.region_ = std::make_unique<bip::mapped_region>(
        DescriptorToMap(fd),
        options.access == MapAccess::read_write ? bip::read_write : bip::read_only,
        static_cast<bip::offset_t>(options.offset_bytes), size, address,
        address != nullptr ? MAP_FIXED : 0);
  } catch (const bip::interprocess_exception& failure) {
    if (address != nullptr) ::munmap(address, mapped_size);
    return std::unexpected(system_error("mmap", std::string(role), failure.get_native_error()));
  } catch (const std::exception& failure) {
    if (address != nullptr) ::munmap(address, mapped_size);
    return std::unexpected(mapping_error(ErrorCode::system_error, role, failure.what()));
  }

  void* base = mapping.region_->get_address();
  mapping.bytes_ = {static_cast<std::byte*>(base), size};
  if (::madvise(base, mapped_size, MADV_DONTFORK) != 0 ||
      ::madvise(base, mapped_size, MADV_DONTDUMP) != 0) {
    return std::unexpected(system_error("madvise", std::string(role)));
  }
  mapping.huge_pages_advised_ =
      options.advise_huge_pages && ::madvise(base, mapped_size, MADV_HUGEPAGE) == 0;
  return mapping;
}

}  // namespace hotkv
