// What a service manager kept is not always what it was given.

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "shared/layout.hpp"
#include "tests/integration/restarting.hpp"
#include "tests/support/cut_off.hpp"

namespace hotkv::testing {
namespace {

using platform::KeptDescriptor;

constexpr ssize_t kHeaderBytes = sizeof(TablesHeader);

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
  EXPECT_TRUE(eventually([&] { return log_count("event=adoption-refused") >= count; }));
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
    EXPECT_GE(status().at("refused_shards"), 1);
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
  EXPECT_TRUE(log_has("found version " + std::to_string(other) + ", need " +
                      std::to_string(kLayoutVersion)));
  EXPECT_NE(look_at("a", 20), "");
}

// A header that is right in itself and a recipe that nobody is certified for: refused once it is
// mapped, by the core.
TEST_F(WrongFiles, WhatTheCoreRefusesIsGivenBackWhole) {
  TablesHeader header{};
  const int tables = file("tables").fd.get();
  ASSERT_EQ(::pread(tables, static_cast<void*>(&header), sizeof header, 0), kHeaderBytes);
  std::strcpy(header.recipe.architecture, "unknown");
  seal_header(header);
  ASSERT_EQ(::pwrite(tables, static_cast<const void*>(&header), sizeof header, 0), kHeaderBytes);
  start_again();
  EXPECT_EQ(status().at("adopted_shards"), 0);
  EXPECT_EQ(status().at("refused_shards"), 1);
  EXPECT_EQ(daemon_->store().kept().size(), kOwnFile);
  KvWorker worker(daemon_->control_path());
  ASSERT_EQ(why(worker.open("a", 1)), "");
  ASSERT_EQ(why(worker.append("a", 20)), "");
  EXPECT_EQ(look_at("a", 20), "");
}

// What the last account did not know of: memory that came too late for it.
TEST_F(WrongFiles, MemoryThatNoBitTellsOfIsGivenBackBeforeAnybodyIsServed) {
  constexpr off_t kBytes = 4 << 20;
  const int arena = file("arena").fd.get();
  const auto allocated = [&] {
    struct stat found {};
    EXPECT_EQ(::fstat(arena, &found), 0);
    return static_cast<off_t>(found.st_blocks) * 512;
  };
  const off_t before = allocated();
  struct stat whole {};
  ASSERT_EQ(::fstat(arena, &whole), 0);
  ASSERT_EQ(::fallocate(arena, FALLOC_FL_KEEP_SIZE, whole.st_size - kBytes, kBytes), 0);
  ASSERT_GE(allocated(), before + kBytes);
  start_again();
  EXPECT_LE(allocated(), before);
  EXPECT_EQ(look_at("a", 20), "");
}

// ---- adoptions that do not end ------------------------------------------------------------------

class DeathsInAdoption : public WrongFiles {
 protected:
  // A daemon that dies of what it takes over.
  void die_in_adoption() {
    daemon_->set_program("hotkvd_faults");
    daemon_->set_variables({"PLANTED_FAULT=die-in-adoption=1"});
    daemon_->start_again();
    ASSERT_TRUE(eventually([&] { return daemon_->has_ended(); })) << daemon_->err();
    daemon_->kill();
    daemon_->set_variables({});
    (void)daemon_->store();
  }
};

TEST_F(DeathsInAdoption, TwoAreForgivenAndForgotten) {
  for (int round = 0; round < 2; ++round) {
    for (int death = 0; death < 2; ++death) die_in_adoption();
    start_again();
    EXPECT_EQ(status().at("adopted_shards"), 1);
    EXPECT_EQ(look_at("a", 20), "");
    daemon_->kill();
    (void)daemon_->store();
  }
}

// FR-061, FR-056: after the third in a row the memory is not tried again, by this daemon or a later
// one, and what is made meanwhile is kept like any other.
TEST_F(DeathsInAdoption, ThreeInARowAreAColdStart) {
  for (int death = 0; death < 3; ++death) die_in_adoption();
  start_again();
  EXPECT_EQ(status().at("adopted_shards"), 0);
  EXPECT_TRUE(eventually([&] { return log_has("3 adoptions in a row"); }));
  EXPECT_EQ(daemon_->store().kept().size(), kOwnFile);
  {
    KvWorker worker(daemon_->control_path());
    ASSERT_EQ(why(worker.open("b", 1)), "");
    ASSERT_EQ(why(worker.append("b", 20)), "");
  }
  daemon_->kill();
  start_again();
  EXPECT_EQ(status().at("adopted_shards"), 1);
  EXPECT_EQ(look_at("b", 20), "");
  EXPECT_NE(look_at("a", 20), "");
}

// Never twice the memory: what a client still maps of a refused arena is within the budget, and the
// daemon after the next knows of it, too.
TEST_F(DeathsInAdoption, MemoryOfRefusedFilesCountsUntilItsLastClientIsGone) {
  start_again();
  // It would come back to other memory otherwise, and make a shard there.
  auto holder = std::make_unique<KvWorker>(worker_that_stays_away(daemon_->control_path()));
  ASSERT_EQ(why(holder->open("big", 1)), "");
  ASSERT_EQ(why(holder->append("big", 4096)), "");
  daemon_->kill();
  for (int death = 0; death < 3; ++death) die_in_adoption();
  // One MiB is left over, and half of one is free.
  daemon_->set_flags({"--max-bytes=1536K", "--hugepages=off", "--chunk-tokens=16"});
  for (int start = 0; start < 2; ++start) {
    SCOPED_TRACE(start);
    start_again();
    EXPECT_EQ(status().at("adopted_shards"), 0);
    EXPECT_EQ(status().at("refused_shards"), 1);
    EXPECT_GE(status().at("account").at("in_transit_bytes"), 4096U * 256);
    EXPECT_EQ(broken_invariant(*daemon_), "");
    EXPECT_EQ(daemon_->store().kept().size(), kOwnFile + kFilesOfAShard);
    if (start == 0) {
      daemon_->kill();
      (void)daemon_->store();
    }
  }
  KvWorker other(daemon_->control_path(), worker_recipe({0, 1}, "other"));
  ASSERT_EQ(why(other.open("a", 1)), "");
  const auto refused = other.append("a", 4096);
  ASSERT_FALSE(refused.has_value());
  EXPECT_NE(refused.error().message().find("budget-exceeded"), std::string::npos)
      << refused.error().message();
  holder.reset();
  EXPECT_TRUE(eventually([&] { return status().at("account").at("in_transit_bytes") == 0; }));
  EXPECT_EQ(why(other.append("a", 4096)), "");
}

// ---- limits of today ----------------------------------------------------------------------------

TEST_F(WrongFiles, ASmallerBudgetIsKeptFromTheFirstMomentOn) {
  start_again();
  std::uint64_t before = 0;
  {
    KvWorker worker(daemon_->control_path());
    for (int i = 0; i < 20; ++i) {
      ASSERT_EQ(why(worker.open("s" + std::to_string(i), 1)), "");
      ASSERT_EQ(why(worker.append("s" + std::to_string(i), 4096)), "");
    }
    before = status().at("account").at("provisioned_bytes");
  }
  ASSERT_GE(before, 20U * 4096 * 128);
  daemon_->kill();
  (void)daemon_->store();
  const std::uint64_t budget = before / 2 / 4096 * 4096;
  daemon_->set_flags(
      {"--max-bytes=" + std::to_string(budget), "--hugepages=off", "--chunk-tokens=16"});
  start_again();
  struct stat arena {};
  ASSERT_EQ(::fstat(file("arena").fd.get(), &arena), 0);
  // Beside the chunks there are the length lines.
  EXPECT_LE(static_cast<std::uint64_t>(arena.st_blocks) * 512, budget + (1 << 20));
  EXPECT_LE(status().at("account").at("provisioned_bytes"), budget);
  EXPECT_GT(status().at("account").at("provisioned_bytes"), budget / 2);
  EXPECT_EQ(look_at("s19", 4096), "");  // the one used last
  EXPECT_NE(look_at("s0", 4096), "");
  EXPECT_EQ(broken_invariant(*daemon_), "");
}

// What is pinned stays, and goes when the pin does.
TEST_F(WrongFiles, WhatIsPinnedAboveASmallerBudgetGoesWithItsPin) {
  start_again();
  KvWorker worker(daemon_->control_path());
  ASSERT_EQ(why(worker.open("s", 1)), "");
  ASSERT_EQ(why(worker.append("s", 8192)), "");
  std::optional<View> view =
      worker.client().resolve(SessionId::from("s").value(), Epoch{1}, TokenCount{8192}).value();
  daemon_->kill();
  (void)daemon_->store();
  daemon_->set_flags({"--max-bytes=512K", "--hugepages=off", "--chunk-tokens=16"});
  start_again();
  EXPECT_GE(status().at("account").at("provisioned_bytes"), 8192U * 128);
  EXPECT_EQ(broken_invariant(*daemon_), "");
  EXPECT_EQ(wrong_bytes(worker_recipe(), "s", 1, *view), 0U);
  view.reset();
  EXPECT_TRUE(
      eventually([&] { return status().at("account").at("provisioned_bytes") <= 512U * 1024; }));
  EXPECT_EQ(broken_invariant(*daemon_), "");
}

}  // namespace
}  // namespace hotkv::testing
