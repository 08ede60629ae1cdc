#pragma once
// A value that a test and the processes it forks see together.

#include <sys/mman.h>

#include <new>
#include <system_error>

namespace hotkv::testing {

template <class T>
class SharedMemoryOf {
 public:
  // Throws std::system_error where the kernel gives no memory.
  SharedMemoryOf() {
    void* const place =
        ::mmap(nullptr, sizeof(T), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    if (place == MAP_FAILED) throw std::system_error(errno, std::generic_category(), "mmap");
    value_ = new (place) T{};
  }
  ~SharedMemoryOf() {
    value_->~T();
    ::munmap(value_, sizeof(T));
  }
  SharedMemoryOf(const SharedMemoryOf&) = delete;
  SharedMemoryOf& operator=(const SharedMemoryOf&) = delete;

  [[nodiscard]] T& operator*() const { return *value_; }
  [[nodiscard]] T* operator->() const { return value_; }

 private:
  T* value_;
};

}  // namespace hotkv::testing
