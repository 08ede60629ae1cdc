#pragma once
// How many adoptions in a row did not come to an end: what a daemon that dies of the memory it
// takes over needs to know when it is started again. Outside of that memory, in a small file of its
// own that the service manager keeps beside it.

#include <cstdint>
#include <expected>

#include <hotkv/error.hpp>

#include "daemon/platform/memory_file.hpp"

namespace hotkv {

class FailedAdoptions {
 public:
  static constexpr const char* kRole = "failed-adoptions";  // of the file; its name in the store
  // After this many the next start is cold.
  static constexpr std::uint32_t kMax = 3;

  // None yet. Errors: system_error.
  [[nodiscard]] static std::expected<FailedAdoptions, Error> none();
  // As an earlier daemon left it.
  explicit FailedAdoptions(platform::MemoryFile file) : file_(std::move(file)) {}

  // A file of nonsense counts as none.
  [[nodiscard]] std::uint32_t count() const;
  // An adoption begins: should it not end, it counts. Errors: system_error.
  [[nodiscard]] std::expected<void, Error> begin();
  // It came to an end.
  [[nodiscard]] std::expected<void, Error> end();

  [[nodiscard]] const platform::MemoryFile& file() const { return file_; }

 private:
  [[nodiscard]] std::expected<void, Error> write(std::uint32_t count);

  platform::MemoryFile file_;
};

}  // namespace hotkv
