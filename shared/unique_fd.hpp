#pragma once
// One owner for one file descriptor.

#include <unistd.h>

#include <utility>

namespace hotkv {

// Owns a descriptor and closes it; -1 is "none". Move-only, so that a descriptor is closed exactly
// once: a second close of the same number hits whatever was opened in between.
class [[nodiscard]] UniqueFd {
 public:
  UniqueFd() = default;
  explicit UniqueFd(int fd) : fd_(fd) {}
  UniqueFd(UniqueFd&& other) noexcept : fd_(other.release()) {}
  UniqueFd& operator=(UniqueFd&& other) noexcept {
    if (this != &other) reset(other.release());
    return *this;
  }
  ~UniqueFd() { reset(); }

  [[nodiscard]] int get() const { return fd_; }
  [[nodiscard]] explicit operator bool() const { return fd_ >= 0; }

  // Hands the descriptor over; the caller closes it.
  [[nodiscard]] int release() { return std::exchange(fd_, -1); }

  // Closes the descriptor held and holds `fd` instead. The result of close() is not looked at:
  // Linux frees the number whatever it returns, and a repeated close would close a stranger's.
  void reset(int fd = -1) {
    const int old = std::exchange(fd_, fd);
    if (old >= 0) ::close(old);
  }

 private:
  int fd_ = -1;
};

}  // namespace hotkv
