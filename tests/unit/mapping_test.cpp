#include "shared/mapping.hpp"

#include <sys/mman.h>

#include <cstring>
#include <fstream>
#include <limits>
#include <sstream>
#include <string>
#include <utility>

#include <gtest/gtest.h>

#include "daemon/platform/memory_file.hpp"
#include "tests/support/forked_child.hpp"

namespace hotkv {
namespace {

using platform::MemoryFile;
using testing::ForkedChild;

constexpr std::uint64_t kPage = 4096;
constexpr std::uint64_t kHugePage = std::uint64_t{2} << 20;

MemoryFile make_file(std::uint64_t size_bytes) {
  auto file = MemoryFile::create("test", size_bytes);
  EXPECT_TRUE(file.has_value()) << file.error().message();
  return std::move(*file);
}

Mapping map_whole(const MemoryFile& file, MappingOptions options = {}) {
  options.size_bytes = file.size_bytes();
  options.access = MapAccess::read_write;
  auto mapping = Mapping::map(file.fd(), options, "test");
  EXPECT_TRUE(mapping.has_value()) << mapping.error().message();
  return std::move(*mapping);
}

// The kernel's two-letter flags of the mapping that begins at `address`.
std::string vm_flags(const void* address) {
  std::ostringstream start;
  start << std::hex << reinterpret_cast<std::uintptr_t>(address) << "-";
  std::ifstream smaps("/proc/self/smaps");
  bool is_inside = false;
  for (std::string line; std::getline(smaps, line);) {
    if (line.starts_with(start.str())) is_inside = true;
    if (is_inside && line.starts_with("VmFlags:")) return line + " ";
  }
  return {};
}

TEST(Mapping, TwoViewsOfAFileShareItsBytes) {
  const MemoryFile file = make_file(3 * kPage);
  const Mapping whole = map_whole(file);
  auto last = Mapping::map(file.fd(), {.offset_bytes = 2 * kPage, .size_bytes = kPage}, "test");
  ASSERT_TRUE(last.has_value());
  whole.bytes()[2 * kPage + 5] = std::byte{42};
  EXPECT_EQ(last->bytes()[5], std::byte{42});
  EXPECT_EQ(last->bytes().size(), kPage);
}

TEST(Mapping, IsKeptOutOfCoreDumpsAndForkedChildren) {
  const MemoryFile file = make_file(kPage);
  const Mapping mapping = map_whole(file);
  const std::string flags = vm_flags(mapping.bytes().data());
  EXPECT_NE(flags.find(" dd "), std::string::npos) << flags;
  EXPECT_NE(flags.find(" dc "), std::string::npos) << flags;
}

TEST(Mapping, AgreesWithTheFileModuloAHugePageOnRequest) {
  const MemoryFile file = make_file(4 * kHugePage);
  for (const std::uint64_t offset : {std::uint64_t{0}, kPage, kHugePage, kHugePage + 7 * kPage}) {
    auto mapping = Mapping::map(
        file.fd(),
        {.offset_bytes = offset, .size_bytes = kHugePage + 1, .align_to_huge_page = true}, "test");
    ASSERT_TRUE(mapping.has_value()) << mapping.error().message();
    const auto address = reinterpret_cast<std::uintptr_t>(mapping->bytes().data());
    EXPECT_EQ(address % kHugePage, offset % kHugePage);
    EXPECT_EQ(mapping->bytes()[kHugePage], std::byte{0});
  }
}

TEST(Mapping, AlignedMappingsLeaveNoReservationBehind) {
  const auto address_space_pages = [] {
    std::ifstream statm("/proc/self/statm");
    std::uint64_t pages = 0;
    statm >> pages;
    return pages;
  };
  // A page more than a multiple of 2 MiB: the reservations cannot happen to lie right.
  const MemoryFile file = make_file(kHugePage + kPage);
  (void)address_space_pages();
  const std::uint64_t before = address_space_pages();
  for (int round = 0; round < 20; ++round) {
    const Mapping mapping = map_whole(file, {.align_to_huge_page = true});
  }
  EXPECT_EQ(address_space_pages(), before);
}

// FR-064: a size is compared with the file before anything is mapped.
TEST(Mapping, RefusesARangeThatTheFileDoesNotHave) {
  const MemoryFile file = make_file(2 * kPage);
  const auto code = [&](std::uint64_t offset, std::uint64_t size) {
    auto mapping =
        Mapping::map(file.fd(), {.offset_bytes = offset, .size_bytes = size}, "arena of test");
    EXPECT_FALSE(mapping.has_value());
    if (mapping) return ErrorCode{};
    EXPECT_NE(mapping.error().message().find("arena of test"), std::string::npos);
    return mapping.error().code;
  };
  constexpr auto kMax = std::numeric_limits<std::uint64_t>::max();
  EXPECT_EQ(code(0, 2 * kPage + 1), ErrorCode::shard_damaged);
  EXPECT_EQ(code(2 * kPage, 1), ErrorCode::shard_damaged);
  EXPECT_EQ(code(kPage, kMax), ErrorCode::shard_damaged);
  EXPECT_EQ(code(kMax - kPage + 1, 2 * kPage), ErrorCode::shard_damaged);
  EXPECT_EQ(code(0, 0), ErrorCode::invalid_argument);
  EXPECT_EQ(code(5, kPage), ErrorCode::invalid_argument);
}

TEST(Mapping, AReadOnlyDescriptorCannotBeMappedForWriting) {
  const MemoryFile file = make_file(kPage);
  auto reader = file.reopen(MapAccess::read_only);
  ASSERT_TRUE(reader.has_value());
  for (const bool is_aligned : {false, true}) {
    auto mapping = Mapping::map(
        reader->get(),
        {.size_bytes = kPage, .access = MapAccess::read_write, .align_to_huge_page = is_aligned},
        "test");
    ASSERT_FALSE(mapping.has_value());
    EXPECT_EQ(mapping.error().os_errno, EACCES);
  }
}

TEST(Mapping, OutlivesTheDescriptorAndAMove) {
  Mapping mapping;
  {
    const MemoryFile file = make_file(kPage);
    Mapping first = map_whole(file);
    first.bytes()[0] = std::byte{7};
    mapping = std::move(first);
    EXPECT_TRUE(first.bytes().empty());
  }
  EXPECT_EQ(mapping.bytes()[0], std::byte{7});
}

TEST(Mapping, ItsDestructorInAForkedChildLeavesTheChildsMemoryAlone) {
  const MemoryFile file = make_file(kPage);
  Mapping mapping = map_whole(file);
  ForkedChild child([&] {
    // The address is free here; something of the child's own comes to lie there.
    void* own = ::mmap(mapping.bytes().data(), kPage, PROT_READ | PROT_WRITE,
                       MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED_NOREPLACE, -1, 0);
    if (own == MAP_FAILED) return 1;
    { const Mapping destroyed_here = std::move(mapping); }
    std::memset(own, 1, kPage);
    return 0;
  });
  EXPECT_EQ(child.exit_code(), 0);
}

TEST(Mapping, HugePageAdviceIsAWish) {
  const MemoryFile file = make_file(kHugePage);
  const Mapping advised = map_whole(file, {.align_to_huge_page = true, .advise_huge_pages = true});
  EXPECT_EQ(advised.huge_pages_advised(),
            vm_flags(advised.bytes().data()).find(" hg ") != std::string::npos);
  EXPECT_FALSE(map_whole(file).huge_pages_advised());
}

}  // namespace
}  // namespace hotkv
