#include "daemon/failed_adoptions.hpp"

#include <unistd.h>

#include <utility>

#include "shared/layout.hpp"

namespace hotkv {

std::expected<FailedAdoptions, Error> FailedAdoptions::none() {
  auto file = platform::MemoryFile::create(kRole, kPageBytes);
  if (!file) return std::unexpected(std::move(file.error()));
  return FailedAdoptions(*std::move(file));
}

std::uint32_t FailedAdoptions::count() const {
  std::uint32_t count = 0;
  const ssize_t got = ::pread(file_.fd(), &count, sizeof count, 0);
  return got == sizeof count && count <= kMax ? count : 0;
}

std::expected<void, Error> FailedAdoptions::begin() {
  return write(count() + 1);
}

std::expected<void, Error> FailedAdoptions::end() {
  return write(0);
}

std::expected<void, Error> FailedAdoptions::write(std::uint32_t count) {
  if (::pwrite(file_.fd(), &count, sizeof count, 0) == sizeof count) return {};
  return std::unexpected(system_error("write", kRole));
}

}  // namespace hotkv
