// Memory that was promised and is not there: limits of groups, huge pages, places for memory files,
// core dumps, and what a stop leaves behind.

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sched.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/mount.h>
#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <memory>
#include <nlohmann/json.hpp>
#include <sstream>
#include <string>
#include <vector>

#include "tests/support/memory_group.hpp"
#include "tests/support/raw_client.hpp"
#include "tests/support/sanitized.hpp"
#include "tests/support/under_fire.hpp"

namespace hotkv::testing {
namespace {

namespace fs = std::filesystem;

constexpr std::uint64_t kMiB = std::uint64_t{1} << 20;
constexpr const char* kNoGroup = "this user or machine cannot make a cgroup with a limit of memory";

std::string read_file(const fs::path& path) {
  std::ifstream file(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), {}};
}

// ---- limits -------------------------------------------------------------------------------------

class LimitedMemory : public ::testing::Test {
 protected:
  // A sanitizer's own memory counts in the group as well.
  static constexpr std::uint64_t kLimit = (kIsSanitized ? 512 : 64) * kMiB;
  static constexpr std::uint64_t kBudget = kLimit - 4 * kMiB;

  void SetUp() override {
    group_ = MemoryGroup::make(kLimit);
    if (!group_) GTEST_SKIP() << kNoGroup;
  }
  [[nodiscard]] DaemonOptions options(std::vector<std::string> flags) const {
    flags.insert(flags.end(), {"--hugepages=off", "--chunk-tokens=16"});
    return {.flags = std::move(flags), .group = group_->folder()};
  }
  static std::string bytes_flag(std::uint64_t bytes) {
    return "--max-bytes=" + std::to_string(bytes);
  }

  std::unique_ptr<MemoryGroup> group_;
};

// FR-041: a budget that the group cannot hold is refused at the start, with both numbers.
// FR-046: the machine has far more, and the group is what counts; what it does not say it takes
// from the group too.
TEST_F(LimitedMemory, IsWhatTheBudgetIsComparedWithAtTheStart) {
  // Not a whole number of gibibytes, which is written as such.
  const std::uint64_t greed = 2 * kLimit + kMiB;
  DaemonProcess greedy(options({bytes_flag(greed)}));
  EXPECT_FALSE(greedy.wait_ready());
  EXPECT_EQ(greedy.wait_exit(), 2);
  const std::string mebibytes = std::to_string(kLimit / kMiB);
  const std::string both = std::to_string(greed / kMiB) + "M, but its cgroup has " + mebibytes;
  EXPECT_NE(greedy.err().find(both), std::string::npos) << greedy.err();

  DaemonProcess modest(options({}));
  ASSERT_TRUE(modest.wait_ready()) << modest.err();
  EXPECT_EQ(status_number(modest, "/limits/max_bytes"), kLimit / 2);
  EXPECT_EQ(modest.stop(), 0) << modest.err();
  EXPECT_EQ(group_->kills(), 0U);
}

// Appends 1 MiB each until one is refused, which is to be for want of memory; with every byte of
// what was appended right. The number of the check that failed.
int append_until_refused(KvWorker& worker, const std::string& session) {
  constexpr std::uint32_t kTokens = kMiB / 128;  // of worker_recipe()
  if (!worker.open(session, 1)) return 1;
  std::uint32_t length = 0;
  for (;;) {
    const auto appended = worker.append(session, kTokens);
    if (appended) {
      length += kTokens;
      continue;
    }
    if (!appended.error().is(ErrorCode::memory_unavailable)) return 2;
    const std::string said = why(appended);
    if (said.find("needed ") == std::string::npos || said.find("available ") == std::string::npos) {
      return 3;
    }
    break;
  }
  const auto view =
      worker.client().resolve(SessionId::from(session).value(), Epoch{1}, TokenCount{length});
  if (!view) return 4;
  return wrong_bytes(worker_recipe(), session, 1, *view) == 0 ? 0 : 5;
}

// FR-041: with the group's memory taken by somebody else, appends are refused with both numbers,
// and nobody dies of it, by SIGBUS or by the kernel's choice; once it is given back, they go on.
TEST_F(LimitedMemory, TakenBySomebodyElseMeansRefusedAppendsAndNoDeaths) {
  DaemonProcess daemon(options({bytes_flag(kBudget)}));
  ASSERT_TRUE(daemon.wait_ready()) << daemon.err();
  Turns hog_turns, turns;
  ForkedChild hog([&] {
    if (!group_->join()) return 1;
    const std::size_t size = kLimit / 4;
    void* const taken = ::mmap(nullptr, size, PROT_READ | PROT_WRITE,
                               MAP_PRIVATE | MAP_ANONYMOUS | MAP_POPULATE, -1, 0);
    if (taken == MAP_FAILED) return 2;
    hog_turns.arrive_and_wait();
    return 0;
  });
  ASSERT_TRUE(hog_turns.wait_for_child());
  ForkedChild worker([&] {
    if (!group_->join()) return 10;
    KvWorker writer(daemon.control_path());
    if (const int failed = append_until_refused(writer, "first"); failed != 0) return failed;
    turns.arrive_and_wait();
    return writer.append("first", kMiB / 128) ? 0 : 11;
  });
  ASSERT_TRUE(turns.wait_for_child()) << "check " << worker.exit_code();
  EXPECT_LT(account_bytes(daemon, "provisioned_bytes"), kLimit * 3 / 4);
  EXPECT_GT(refusals(daemon, "memory-unavailable"), 0U);
  hog_turns.go_on();
  EXPECT_EQ(hog.exit_code(), 0);
  turns.go_on();
  EXPECT_EQ(worker.exit_code(), 0);
  EXPECT_EQ(broken_invariant(daemon), "");
  EXPECT_EQ(group_->kills(), 0U);
  EXPECT_EQ(daemon.stop(), 0) << daemon.err();
}

// FR-046: the shipped unit has no limit of its own that the budget could pass.
TEST(ShippedUnit, SetsNoLimitOfMemoryBelowTheBudget) {
  const fs::path folder = fs::path(HOTKV_SOURCE_FOLDER) / "systemd";
  std::istringstream unit(read_file(folder / "hotkvd.service"));
  std::size_t lines = 0;
  for (std::string line; std::getline(unit, line); ++lines) {
    for (const char* limit : {"MemoryMax=", "MemoryHigh=", "MemoryLimit="}) {
      EXPECT_FALSE(line.starts_with(limit)) << line;
    }
  }
  EXPECT_GT(lines, 0U);
  // And the budget is "auto", half of what there is, unless somebody decides otherwise.
  EXPECT_NE(read_file(folder / "hotkvd.toml").find("#max_bytes = \"auto\""), std::string::npos);
}

// FR-041: nothing of it needs a file system with room for files.
TEST(SharedMemoryFolder, MayBeFullOrReadOnlyOrMissing) {
  ForkedChild child([&] {
    if (::geteuid() != 0 || ::unshare(CLONE_NEWNS) != 0 ||
        ::mount("none", "/", nullptr, MS_REC | MS_PRIVATE, nullptr) != 0 ||
        ::mount("none", "/dev/shm", "tmpfs", MS_RDONLY, "size=4k,nr_inodes=1") != 0) {
      return 77;
    }
    DaemonProcess daemon({.flags = {"--max-bytes=16M", "--hugepages=off"}});
    if (!daemon.wait_ready()) return 1;
    KvWorker worker(daemon.control_path());
    if (!worker.open("s", 1) || !worker.append("s", 50'000)) return 2;  // 6 MiB
    return daemon.stop() == 0 ? 0 : 3;
  });
  const int exit_code = child.exit_code();
  if (exit_code == 77) GTEST_SKIP() << "needs a mount namespace with a /dev/shm of its own";
  EXPECT_EQ(exit_code, 0) << "the number of the check that failed";
}

// FR-043: where there are no huge pages, `try` goes on with small ones, and says so in the log and
// in the status; memory is there before it is handed out, in pages of either size.
TEST(HugePagesOnTry, AreNotThereAndThatIsShown) {
  const std::string modes = read_file("/sys/kernel/mm/transparent_hugepage/shmem_enabled");
  if (modes.find("[never]") == std::string::npos && modes.find("[deny]") == std::string::npos) {
    GTEST_SKIP() << "this machine has huge pages for shared memory: " << modes;
  }
  DaemonProcess daemon({.flags = {"--max-bytes=16M", "--hugepages=try"}});
  ASSERT_TRUE(daemon.wait_ready()) << daemon.err();
  KvWorker worker(daemon.control_path());
  ASSERT_EQ(why(worker.open("s", 1)), "");
  EXPECT_EQ(why(worker.append("s", 50'000)), "");
  EXPECT_EQ(admin_page(daemon, "/status").at("limits").at("huge_pages"), false);
  EXPECT_EQ(daemon.stop(), 0);
  EXPECT_NE(daemon.err().find("hugepages_effective=off"), std::string::npos) << daemon.err();
}

// ---- core dumps ---------------------------------------------------------------------------------

struct MappingOfAFile {
  std::string name;
  bool in_dumps;
};

// Mappings of hotkv's memory files that a process has.
std::vector<MappingOfAFile> mappings_of(pid_t pid) {
  std::ifstream smaps("/proc/" + std::to_string(pid) + "/smaps");
  std::vector<MappingOfAFile> found;
  bool is_inside = false;
  for (std::string line; std::getline(smaps, line);) {
    if (line.find('-') < line.find(' ')) {
      const std::size_t name = line.find("/memfd:hotkv-");
      is_inside = name != std::string::npos;
      if (is_inside) found.push_back({line.substr(name), true});
    } else if (is_inside && line.starts_with("VmFlags:")) {
      found.back().in_dumps = (line + " ").find(" dd ") == std::string::npos;
    }
  }
  return found;
}

void expect_three_files_in_no_dump(pid_t pid, const char* whose) {
  const auto mappings = mappings_of(pid);
  for (const char* role : {"tables", "arena", "pages"}) {
    EXPECT_TRUE(std::ranges::any_of(mappings,
                                    [&](const MappingOfAFile& mapping) {
                                      return mapping.name.starts_with(std::string("/memfd:hotkv-") +
                                                                      role);
                                    }))
        << role << " of " << whose;
  }
  for (const MappingOfAFile& mapping : mappings) {
    EXPECT_FALSE(mapping.in_dumps) << mapping.name << " of " << whose;
  }
}

// The file that ending by SIGABRT leaves in the folder, or "".
fs::path core_in(const fs::path& folder) {
  for (const auto& entry : fs::directory_iterator(folder)) {
    if (entry.path().filename().string().starts_with("core")) return entry.path();
  }
  return {};
}

bool may_leave_a_core_in(const fs::path& folder) {
  const rlimit unlimited{RLIM_INFINITY, RLIM_INFINITY};
  return ::setrlimit(RLIMIT_CORE, &unlimited) == 0 && ::chdir(folder.c_str()) == 0;
}

bool has_row(const std::string& text, std::string_view session, std::uint32_t position) {
  std::array<std::byte, 32> row;
  bench::fill_row(row, {session, 1, position, 0, bench::Half::keys});
  return std::ranges::search(text, row, {}, [](char c) {
           return static_cast<std::byte>(c);
         }).size() != 0;
}

class CoreDumps : public ::testing::Test {
 protected:
  static constexpr std::uint32_t kTokens = 100'000;  // 12.8 MB, of which nothing is to be dumped
  void SetUp() override { ASSERT_TRUE(daemon_.wait_ready()) << daemon_.err(); }

  TemporaryDirectory folder_;
  // The files are far larger than what is in them.
  DaemonProcess daemon_{{.flags = {"--max-bytes=1G", "--hugepages=off"}}};
};

// FR-049: all mappings of the files, in the daemon as in its clients, are kept out of dumps.
TEST_F(CoreDumps, LeaveOutAllThreeFilesInDaemonAndClients) {
  KvWorker writer(daemon_.control_path());
  const KvWorker reader(daemon_.control_path(), worker_recipe(), Access::read);
  ASSERT_EQ(why(writer.open("s", 1)), "");
  ASSERT_EQ(why(writer.append("s", kTokens)), "");
  expect_three_files_in_no_dump(::getpid(), "writer and reader");
  if (::geteuid() != 0) GTEST_SKIP() << "only root sees the daemon's mappings";
  expect_three_files_in_no_dump(daemon_.pid(), "the daemon");
}

// FR-049: a client that crashes leaves a core without one row of what it had mapped, and a small
// one; its own memory is in it, so there is a core to speak of.
TEST_F(CoreDumps, OfAClientHoldNoByteOfItsSessions) {
  const std::string pattern = read_file("/proc/sys/kernel/core_pattern");
  if (pattern.empty() || pattern.front() == '|' || pattern.front() == '/') {
    GTEST_SKIP() << "cores go elsewhere here: " << pattern;
  }
  if (kIsSanitized) GTEST_SKIP() << "a sanitizer has its own way to crash";
  ForkedChild client([&] {
    if (!may_leave_a_core_in(folder_.path())) return 77;
    KvWorker worker(daemon_.control_path());
    if (!worker.open("session", 1) || !worker.append("session", kTokens)) return 1;
    std::vector<std::byte> own(1 << 20);
    bench::fill_row(std::span(own).first(32), {"own memory", 1, 7, 0, bench::Half::keys});
    asm volatile("" : : "r"(own.data()) : "memory");
    ::signal(SIGABRT, SIG_DFL);
    std::abort();
  });
  if (client.exit_code() == 77) GTEST_SKIP() << "this user may not raise the limit of core files";
  const fs::path core = core_in(folder_.path());
  ASSERT_FALSE(core.empty());
  ASSERT_LT(fs::file_size(core), 64 * kMiB);  // holes of a dumped arena would count
  const std::string text = read_file(core);
  EXPECT_TRUE(has_row(text, "own memory", 7));
  for (std::uint32_t position = 0; position < kTokens; position += kTokens / 20) {
    EXPECT_FALSE(has_row(text, "session", position)) << position;
  }
}

// FR-049: the daemon leaves none at all, whatever the limits allow: it has every tenant's bytes.
TEST_F(CoreDumps, OfTheDaemonAreNotMade) {
  ForkedChild child([&] {
    if (!may_leave_a_core_in(folder_.path())) return 77;
    DaemonProcess daemon({.flags = {"--max-bytes=16M", "--hugepages=off"}});
    if (!daemon.wait_ready()) return 1;
    daemon.signal(SIGABRT);
    return daemon.wait_exit() == -1 ? 0 : 2;
  });
  const int exit_code = child.exit_code();
  if (exit_code == 77) GTEST_SKIP() << "this user may not raise the limit of core files";
  EXPECT_EQ(exit_code, 0) << "the number of the check that failed";
  EXPECT_TRUE(core_in(folder_.path()).empty());
}

// ---- stops --------------------------------------------------------------------------------------

// A daemon in the folder and the group, with memory behind a client's context; then the signal.
void serve_and_end_by(int signal, const fs::path& folder, const MemoryGroup* group) {
  DaemonProcess daemon({.flags = {"--max-bytes=16M", "--hugepages=off", "--chunk-tokens=16"},
                        .directory = folder,
                        .group = group != nullptr ? group->folder() : fs::path()});
  ASSERT_TRUE(daemon.wait_ready()) << daemon.err();
  {
    RawClient client = attached_client(daemon.control_path());
    const auto opened = client.open("session", 1);
    ASSERT_TRUE(is_done(client.append("session", 1, opened.generation, 8192)));  // 4 MiB
    daemon.signal(SIGHUP);                                                       // which it ignores
    ASSERT_TRUE(is_done(client.explain("session", 1, 0)));
    if (group != nullptr) {
      EXPECT_GE(group->shared_bytes() + 2 * kMiB, 4 * kMiB);
    }
  }
  daemon.signal(signal);
  const bool in_order = signal == SIGTERM || signal == SIGINT;
  EXPECT_EQ(daemon.wait_exit(), in_order ? 0 : -1) << daemon.err();
  EXPECT_EQ(fs::exists(daemon.control_path()), !in_order);
  EXPECT_EQ(fs::exists(daemon.admin_path()), !in_order);
}

// FR-050: eighty ends one after the other in one folder: those in order take their sockets with
// them, after the others the next start cleans up; no lock is held, and no byte of memory stays.
TEST(Stops, OfEveryKindLeaveNothingThatTheNextStartMinds) {
  constexpr int kRounds = kIsSanitized ? 3 : 20;
  const TemporaryDirectory folder;
  const auto group = MemoryGroup::make(1024 * kMiB);
  for (int round = 0; round < kRounds && !::testing::Test::HasFailure(); ++round) {
    for (const int signal : {SIGTERM, SIGKILL, SIGINT, SIGABRT}) {
      serve_and_end_by(signal, folder.path(), group.get());
      if (group) {
        EXPECT_TRUE(eventually([&] { return group->shared_bytes() == 0; }))
            << group->shared_bytes() << " bytes after signal " << signal;
      }
    }
  }
  serve_and_end_by(SIGTERM, folder.path(), group.get());
  for (const auto& entry : fs::directory_iterator(folder.path())) {
    EXPECT_EQ(entry.path().extension(), ".lock") << entry.path();  // which nobody holds
  }
  if (!group) GTEST_SKIP() << "all but the memory was looked at: " << kNoGroup;
}

}  // namespace
}  // namespace hotkv::testing
