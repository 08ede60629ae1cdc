#include "daemon/platform/memory_file.hpp"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <string>
#include <utility>
#include <vector>

#include <gtest/gtest.h>

#include "tests/support/forked_child.hpp"

namespace hotkv::platform {
namespace {

using testing::ForkedChild;

constexpr std::uint64_t kMiB = std::uint64_t{1} << 20;

MemoryFile make_file(std::uint64_t size_bytes) {
  auto file = MemoryFile::create("arena", size_bytes);
  EXPECT_TRUE(file.has_value()) << file.error().message();
  return std::move(*file);
}

TEST(MemoryFile, IsBornSparsePrivateAndCloseOnExec) {
  const MemoryFile file = make_file(std::uint64_t{1} << 40);
  struct stat status {};
  ASSERT_EQ(::fstat(file.fd(), &status), 0);
  EXPECT_EQ(status.st_mode & 07777, 0600U);
  EXPECT_EQ(file.allocated_bytes(), 0U);
  EXPECT_NE(::fcntl(file.fd(), F_GETFD) & FD_CLOEXEC, 0);
}

TEST(MemoryFile, NobodyCanShrinkGrowOrUnsealIt) {
  const MemoryFile file = make_file(2 * kMiB);
  const auto writer = file.reopen(MapAccess::read_write);
  ASSERT_TRUE(writer.has_value());
  for (const off_t size : {off_t{0}, off_t{kMiB}, off_t{4 * kMiB}}) {
    EXPECT_EQ(::ftruncate(writer->get(), size), -1);
    EXPECT_EQ(errno, EPERM);
  }
  EXPECT_EQ(::fallocate(writer->get(), 0, 2 * kMiB, 4096), -1);
  EXPECT_EQ(::fcntl(writer->get(), F_ADD_SEALS, F_SEAL_WRITE), -1);
  EXPECT_EQ(errno, EPERM);
}

TEST(MemoryFile, AReadersDescriptorNeitherWritesNorPunches) {
  const MemoryFile file = make_file(kMiB);
  const auto reader = file.reopen(MapAccess::read_only);
  ASSERT_TRUE(reader.has_value());
  EXPECT_EQ(::pwrite(reader->get(), "x", 1, 0), -1);
  EXPECT_EQ(::fallocate(reader->get(), FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, 0, 4096), -1);
  EXPECT_EQ(::mmap(nullptr, 4096, PROT_WRITE, MAP_SHARED, reader->get(), 0), MAP_FAILED);
}

TEST(MemoryFile, AnotherUserCannotReopenAReadersDescriptorForWriting) {
  if (::geteuid() != 0) GTEST_SKIP() << "needs root, to become another user";
  const MemoryFile file = make_file(kMiB);
  const auto reader = file.reopen(MapAccess::read_only);
  ASSERT_TRUE(reader.has_value());
  ForkedChild child([&] {
    const std::string path = "/proc/self/fd/" + std::to_string(reader->get());
    if (::setegid(65534) != 0 || ::seteuid(65534) != 0) return 1;
    char byte = 0;
    if (::pread(reader->get(), &byte, 1, 0) != 1) return 2;  // what was handed over stays readable
    for (const int flags : {O_RDWR, O_WRONLY, O_RDWR | O_TRUNC}) {
      if (::open(path.c_str(), flags) != -1) return 3;
      if (errno != EACCES) return 4;
    }
    return ::fchmod(reader->get(), 0666) == -1 ? 0 : 5;
  });
  EXPECT_EQ(child.exit_code(), 0);
}

TEST(MemoryFile, ReopenGivesADescriptionOfItsOwn) {
  const MemoryFile file = make_file(kMiB);
  const auto writer = file.reopen(MapAccess::read_write);
  ASSERT_TRUE(writer.has_value());
  EXPECT_NE(::fcntl(writer->get(), F_GETFD) & FD_CLOEXEC, 0);
  EXPECT_EQ(::lseek(writer->get(), 100, SEEK_SET), 100);
  EXPECT_EQ(::lseek(file.fd(), 0, SEEK_CUR), 0);
}

TEST(MemoryFile, TheAccountFollowsAllocateAndPunch) {
  const MemoryFile file = make_file(8 * kMiB);
  EXPECT_TRUE(file.allocate({2 * kMiB, 4 * kMiB}).has_value());
  EXPECT_EQ(file.allocated_bytes(), 4 * kMiB);
  EXPECT_TRUE(file.allocate({2 * kMiB, 4 * kMiB}).has_value());
  EXPECT_EQ(file.allocated_bytes(), 4 * kMiB);
  EXPECT_TRUE(file.punch({3 * kMiB, kMiB}).has_value());
  EXPECT_EQ(file.allocated_bytes(), 3 * kMiB);
}

TEST(MemoryFile, AllocateKeepsBytesAndPunchZeroesThem) {
  const MemoryFile file = make_file(kMiB);
  char byte = 'x';
  ASSERT_EQ(::pwrite(file.fd(), &byte, 1, 5000), 1);
  EXPECT_TRUE(file.allocate({0, kMiB}).has_value());
  ASSERT_EQ(::pread(file.fd(), &byte, 1, 5000), 1);
  EXPECT_EQ(byte, 'x');
  EXPECT_TRUE(file.punch({0, kMiB}).has_value());
  ASSERT_EQ(::pread(file.fd(), &byte, 1, 5000), 1);
  EXPECT_EQ(byte, '\0');
}

TEST(MemoryFile, RangesOutsideAreRefusedNamingTheFile) {
  const MemoryFile file = make_file(kMiB);
  for (const ByteRange range : {ByteRange{0, 0}, ByteRange{kMiB, 1}, ByteRange{0, kMiB + 1},
                                ByteRange{4096, ~std::uint64_t{0}}}) {
    const auto allocated = file.allocate(range);
    ASSERT_FALSE(allocated.has_value());
    EXPECT_EQ(allocated.error().code, ErrorCode::invalid_argument);
    EXPECT_EQ(allocated.error().object, "arena");
    EXPECT_FALSE(file.punch(range).has_value());
  }
  EXPECT_EQ(file.allocated_bytes(), 0U);
}

TEST(MemoryFile, SizesThatNoFileHasAreRefused) {
  for (const std::uint64_t size : {std::uint64_t{0}, ~std::uint64_t{0}, std::uint64_t{1} << 63}) {
    const auto file = MemoryFile::create("tables", size);
    ASSERT_FALSE(file.has_value());
    EXPECT_EQ(file.error().object, "tables");
  }
}

// FR-064: what a dead process left half made is told by seals and size, before anything maps it.
TEST(MemoryFile, AdoptTakesOnlyASealedReadWriteMemoryFile) {
  const MemoryFile file = make_file(kMiB);
  auto adopted = MemoryFile::adopt("arena", UniqueFd(::dup(file.fd())));
  ASSERT_TRUE(adopted.has_value());
  EXPECT_EQ(adopted->size_bytes(), kMiB);

  constexpr int kAllSeals = F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL;
  const auto memfd = [](off_t size, int seals) {
    UniqueFd fd(::memfd_create("other", MFD_CLOEXEC | MFD_ALLOW_SEALING));
    EXPECT_EQ(::ftruncate(fd.get(), size), 0);
    EXPECT_EQ(::fcntl(fd.get(), F_ADD_SEALS, seals), 0);
    return fd;
  };
  int pipe[2];
  ASSERT_EQ(::pipe2(pipe, O_CLOEXEC), 0);
  const UniqueFd other_end(pipe[0]);
  std::vector<UniqueFd> strangers;
  strangers.push_back(file.reopen(MapAccess::read_only).value());
  strangers.emplace_back(
      ::open(("/proc/self/fd/" + std::to_string(file.fd())).c_str(), O_WRONLY | O_CLOEXEC));
  strangers.push_back(memfd(0, kAllSeals));
  strangers.push_back(memfd(4096, 0));
  for (const int missing : {F_SEAL_SHRINK, F_SEAL_GROW, F_SEAL_SEAL}) {
    strangers.push_back(memfd(4096, kAllSeals & ~missing));
  }
  strangers.emplace_back(::open("/dev/null", O_RDWR | O_CLOEXEC));
  strangers.emplace_back(::open("/", O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  strangers.emplace_back(pipe[1]);
  for (UniqueFd& stranger : strangers) {
    ASSERT_TRUE(stranger);
    const auto index = &stranger - strangers.data();
    const auto refused = MemoryFile::adopt("arena", std::move(stranger));
    ASSERT_FALSE(refused.has_value()) << index;
    EXPECT_EQ(refused.error().code, ErrorCode::shard_damaged) << index;
  }
}

}  // namespace
}  // namespace hotkv::platform
