#pragma once
// Zeroed memory that costs nothing until it is touched, like a shard's files.

#include <sys/mman.h>

#include <cstddef>
#include <cstdlib>
#include <span>
#include <utility>

namespace hotkv::test {

class PlainMemory {
 public:
  explicit PlainMemory(std::size_t size_bytes) : size_bytes_(size_bytes) {
    base_ = ::mmap(nullptr, size_bytes, PROT_READ | PROT_WRITE,
                   MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (base_ == MAP_FAILED) std::abort();
  }
  PlainMemory(PlainMemory&& other) noexcept
      : base_(std::exchange(other.base_, nullptr)), size_bytes_(other.size_bytes_) {}
  PlainMemory& operator=(PlainMemory&&) = delete;
  ~PlainMemory() {
    if (base_ != nullptr) ::munmap(base_, size_bytes_);
  }
  [[nodiscard]] std::span<std::byte> bytes() const {
    return {static_cast<std::byte*>(base_), size_bytes_};
  }

 private:
  void* base_;
  std::size_t size_bytes_;
};

}  // namespace hotkv::test
