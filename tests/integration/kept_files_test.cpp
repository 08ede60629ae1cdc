// What a service manager kept is not always what it was given.

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <memory>
#include <nlohmann/json.hpp>
#include <span>
#include <string>
#include <vector>

#include "shared/layout.hpp"
#include "tests/integration/restarting.hpp"

namespace hotkv::testing {
namespace {

using platform::KeptDescriptor;

class WrongFiles : public Restart {
 protected:
  void SetUp() override {
    Restart::SetUp();
    KvWorker worker(daemon_->control_path());
    ASSERT_EQ(why(worker.open("a", 1)), "");
    ASSERT_EQ(why(worker.append("a", 20)), "");
    daemon_->kill();
    (void)daemon_->store();
  }
  static std::vector<KeptDescriptor>& kept(DaemonProcess& daemon) {
    return const_cast<std::vector<KeptDescriptor>&>(daemon.store().kept());
  }
  std::vector<KeptDescriptor>& kept() { return kept(*daemon_); }
  KeptDescriptor& file(const std::string& role) {
    return *std::ranges::find_if(kept(), [&](const KeptDescriptor& each) {
      return platform::MemoryFile::role_of(each.fd.get()) == role;
    });
  }
  void start_again() {
    daemon_->start_again();
    ASSERT_TRUE(daemon_->wait_ready()) << daemon_->err();
  }
};

// FR-064: each is refused before it is mapped, with one line, and the rest is taken over.
TEST_F(WrongFiles, StrangeDescriptorsAreRefusedOneByOneAndTheShardIsTakenOver) {
  const auto memfd = [](const char* name, off_t size, int seals) {
    UniqueFd fd(::memfd_create(name, MFD_CLOEXEC | MFD_ALLOW_SEALING));
    EXPECT_EQ(::ftruncate(fd.get(), size), 0);
    if (seals != 0) {
      EXPECT_EQ(::fcntl(fd.get(), F_ADD_SEALS, seals), 0);
    }
    return fd;
  };
  constexpr int kSealed = F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL;
  int pipe_ends[2];
  ASSERT_EQ(::pipe2(pipe_ends, O_CLOEXEC), 0);
  const UniqueFd other_end(pipe_ends[1]);
  std::vector<KeptDescriptor> strange;
  strange.push_back({"empty", memfd("hotkv-tables", 0, kSealed)});
  strange.push_back({"one-byte", memfd("hotkv-tables", 1, kSealed)});
  strange.push_back({"header-only", memfd("hotkv-tables", sizeof(TablesHeader), kSealed)});
  strange.push_back({"unsealed", memfd("hotkv-tables", 1 << 20, 0)});
  strange.push_back({"lonely-arena", memfd("hotkv-arena", 1 << 20, kSealed)});
  strange.push_back({"lonely-pages", memfd("hotkv-pages", 1 << 20, kSealed)});
  strange.push_back({"foreign", memfd("something", 1 << 20, kSealed)});
  strange.push_back({"pipe", UniqueFd(pipe_ends[0])});
  strange.push_back({"folder", UniqueFd(::open("/", O_RDONLY | O_DIRECTORY | O_CLOEXEC))});
  strange.push_back({"null", UniqueFd(::open("/dev/null", O_RDWR | O_CLOEXEC))});
  const std::size_t count = strange.size();
  for (KeptDescriptor& each : strange) kept().insert(kept().begin(), std::move(each));
  start_again();
  EXPECT_EQ(look_at("a", 20), "");
  EXPECT_EQ(log_count("event=adoption-refused"), count) << daemon_->err();
  EXPECT_EQ(status().at("refused_shards"), count);
  // They have left the store: the next start finds what it knows.
  EXPECT_EQ(daemon_->store().kept().size(), kOwnFile + kFilesOfAShard);
}

TEST_F(WrongFiles, AShardOfWhichAFileIsMissingIsRefusedAndTheDaemonServes) {
  for (const std::string role : {"tables", "arena", "pages"}) {
    SCOPED_TRACE(role);
    std::erase_if(kept(), [&](const KeptDescriptor& each) {
      return platform::MemoryFile::role_of(each.fd.get()) == role;
    });
    start_again();
    EXPECT_EQ(status().at("adopted_shards"), 0);
    EXPECT_TRUE(eventually([&] { return log_count("event=adoption-refused") >= 1; }));
    KvWorker worker(daemon_->control_path());
    ASSERT_EQ(why(worker.open("a", 1)), "");
    EXPECT_EQ(worker.context("a").length(), TokenCount{0});
    ASSERT_EQ(why(worker.append("a", 20)), "");
    daemon_->kill();
    (void)daemon_->store();
  }
}

// The right tables with another shard's arena of the same size: the inode tells.
TEST_F(WrongFiles, FilesOfTwoShardsAreNotMixedUp) {
  auto other = daemon_with({.flags = {"--max-bytes=16M"}});
  ASSERT_TRUE(other->wait_ready());
  { const KvWorker worker(other->control_path()); }
  other->kill();
  const auto& theirs = other->store().kept();
  const auto arena = std::ranges::find_if(theirs, [](const KeptDescriptor& each) {
    return platform::MemoryFile::role_of(each.fd.get()) == "arena";
  });
  ASSERT_NE(arena, theirs.end());
  file("arena").fd = UniqueFd(::fcntl(arena->fd.get(), F_DUPFD_CLOEXEC, 0));
  start_again();
  EXPECT_EQ(status().at("adopted_shards"), 0);
  EXPECT_NE(look_at("a", 20), "");
}

TEST_F(WrongFiles, AnotherLayoutVersionIsAColdStartWithOneLine) {
  const std::uint32_t other = kLayoutVersion + 1;
  ASSERT_EQ(::pwrite(file("tables").fd.get(), &other, sizeof other,
                     offsetof(TablesHeader, layout_version)),
            std::ssize(std::as_bytes(std::span(&other, 1))));
  start_again();
  EXPECT_EQ(status().at("adopted_shards"), 0);
  EXPECT_TRUE(eventually([&] { return log_count("event=adoption-refused") == 1; }));
  EXPECT_TRUE(log_has("found version 2, need 1"));
  EXPECT_NE(look_at("a", 20), "");
}

// FR-061, FR-056: after the third adoption in a row that did not end, the memory is not tried
// again.
TEST_F(WrongFiles, MemoryThatThreeAdoptionsDiedOfIsGivenUp) {
  const std::uint32_t failures = 2;
  const int counter = file("failed-adoptions").fd.get();
  ASSERT_EQ(::pwrite(counter, &failures, sizeof failures, 0), 4);
  start_again();
  EXPECT_EQ(status().at("adopted_shards"), 1);  // the third try, and it ends well
  daemon_->kill();
  std::uint32_t now = 99;
  ASSERT_EQ(::pread(counter, &now, sizeof now, 0), 4);
  EXPECT_EQ(now, 0U);
  const std::uint32_t three = 3;
  ASSERT_EQ(::pwrite(counter, &three, sizeof three, 0), 4);
  start_again();
  EXPECT_EQ(status().at("adopted_shards"), 0);
  EXPECT_TRUE(eventually([&] { return log_has("3 adoptions in a row"); }));
  EXPECT_EQ(daemon_->store().kept().size(), kOwnFile);
}

TEST_F(WrongFiles, ASmallerBudgetIsKeptFromTheFirstMomentOn) {
  start_again();
  std::uint64_t before = 0;
  {
    KvWorker worker(daemon_->control_path());
    for (int i = 0; i < 40; ++i) {
      ASSERT_EQ(why(worker.open("s" + std::to_string(i), 1)), "");
      ASSERT_EQ(why(worker.append("s" + std::to_string(i), 64)), "");
    }
    before = status().at("account").at("provisioned_bytes");
  }
  daemon_->kill();
  const std::uint64_t budget = before / 2 / 4096 * 4096;
  daemon_->set_flags(
      {"--max-bytes=" + std::to_string(budget), "--hugepages=off", "--chunk-tokens=16"});
  start_again();
  EXPECT_LE(status().at("account").at("provisioned_bytes"), budget);
  EXPECT_GT(status().at("account").at("provisioned_bytes"), budget / 2);
  EXPECT_EQ(look_at("s39", 64), "");  // the one used last
  EXPECT_NE(look_at("s0", 64), "");
  EXPECT_EQ(broken_invariant(*daemon_), "");
  struct stat arena {};
  ASSERT_EQ(::fstat(file("arena").fd.get(), &arena), 0);
  // Beside the chunks there are the length lines and what a map of a chunk's first page costs.
  EXPECT_LE(static_cast<std::uint64_t>(arena.st_blocks) * 512, budget + (1 << 20));
}

// Never twice the memory: what clients still map of a refused arena is within the budget, too.
TEST_F(WrongFiles, MemoryOfRefusedFilesCountsUntilItsLastClientIsGone) {
  start_again();
  auto holder = std::make_unique<KvWorker>(daemon_->control_path());
  ASSERT_EQ(why(holder->open("big", 1)), "");
  ASSERT_EQ(why(holder->append("big", 4096)), "");
  daemon_->kill();
  const std::uint32_t three = 3;
  ASSERT_EQ(::pwrite(file("failed-adoptions").fd.get(), &three, sizeof three, 0), 4);
  start_again();
  EXPECT_EQ(status().at("adopted_shards"), 0);
  const std::uint64_t left_over = status().at("account").at("in_transit_bytes");
  EXPECT_GE(left_over, 4096U * 2 * 64);
  holder.reset();
  EXPECT_TRUE(eventually([&] { return status().at("account").at("in_transit_bytes") == 0; }));
}

}  // namespace
}  // namespace hotkv::testing
