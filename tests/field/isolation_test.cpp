// Permissions and isolation.

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sched.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <optional>
#include <string>
#include <vector>

#include "shared/layout.hpp"
#include "tests/support/other_user.hpp"
#include "tests/support/raw_client.hpp"
#include "tests/support/under_fire.hpp"

namespace hotkv::testing {
namespace {

using namespace protocol;

bool is_unknown(const OperationResult& result) {
  return result.outcome == static_cast<std::uint32_t>(Outcome::miss) &&
         result.code == static_cast<std::uint32_t>(MissReason::unknown_session);
}

// A raw client with its three files.
struct Attached {
  Attached(const std::string& control_path, Access access, const Recipe& recipe = small_recipe())
      : client(control_path) {
    client.hello();
    RawReply answer = client.attach(recipe, access);
    reply = answer.body_as<AttachReply>();
    files = std::move(answer.descriptors);
  }
  [[nodiscard]] bool ok() const { return files.count == kAttachDescriptors; }
  [[nodiscard]] int tables() const { return files.fds[0].get(); }
  [[nodiscard]] int arena() const { return files.fds[1].get(); }
  [[nodiscard]] int pages() const { return files.fds[2].get(); }

  RawClient client;
  AttachReply reply{};
  ReceivedDescriptors files;
};

// ---- descriptors --------------------------------------------------------------------------------

class Descriptors : public UnderFire {};

// FR-085: whatever a client does to the files it was given, none of them changes its size, and the
// daemon and everybody else go on; what it can lose is its own shard's bytes.
TEST_F(Descriptors, AreWhatTheyWereWhateverAClientDoesToThem) {
  Attached writer(daemon_.control_path(), Access::write);
  ASSERT_TRUE(writer.ok());
  const OperationResult opened = writer.client.open("session", 1);
  ASSERT_TRUE(is_done(writer.client.append("session", 1, opened.generation, 100)));
  const std::array<std::pair<int, std::uint64_t>, 3> files{{
      {writer.tables(), writer.reply.tables_bytes},
      {writer.arena(), writer.reply.arena_bytes},
      {writer.pages(), writer.reply.pages_bytes},
  }};
  for (const auto& [fd, untrusted_size] : files) {
    const auto size = static_cast<off_t>(untrusted_size);
    for (const off_t other : {off_t{0}, size / 2, size - 1, size + 1, 2 * size}) {
      EXPECT_NE(::ftruncate(fd, other), 0);
    }
    EXPECT_NE(::fallocate(fd, 0, size, 4096), 0);
    EXPECT_NE(::fallocate(fd, FALLOC_FL_COLLAPSE_RANGE, 0, 4096), 0);
    for (const int seal : {F_SEAL_WRITE, F_SEAL_FUTURE_WRITE, F_SEAL_SEAL, F_SEAL_GROW}) {
      EXPECT_NE(::fcntl(fd, F_ADD_SEALS, seal), 0);
    }
    const bool is_writable = fd != writer.tables();
    EXPECT_EQ(::fallocate(fd, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, 0, size) == 0,
              is_writable);
  }
  // Its shard begins anew under it, the daemon's tables are as sound as before.
  EXPECT_EQ(broken_invariant(daemon_), "");
  EXPECT_TRUE(is_done(writer.client.release("session", 1)));
  const OperationResult again = writer.client.open("session", 2);
  ASSERT_TRUE(is_done(again));
  EXPECT_TRUE(is_done(writer.client.append("session", 2, again.generation, 100)));
}

// FR-085: a client of another user can reopen neither its tables nor, as a reader, its arena for
// writing, by whatever way.
TEST_F(Descriptors, CannotBeReopenedForMoreByAnotherUser) {
  const auto exit_code = as_user(daemon_, kStranger, [&] {
    const Attached reader(daemon_.control_path(), Access::read);
    if (!reader.ok()) return 1;
    for (const int fd : {reader.tables(), reader.arena()}) {
      const std::string path = "/proc/self/fd/" + std::to_string(fd);
      for (const int flags : {O_WRONLY, O_RDWR, O_RDWR | O_TRUNC}) {
        if (::open(path.c_str(), flags | O_CLOEXEC) >= 0 || errno != EACCES) return 2;
      }
      void* const mapped = ::mmap(nullptr, 4096, PROT_READ, MAP_SHARED, fd, 0);
      if (mapped == MAP_FAILED) return 3;
      if (::mprotect(mapped, 4096, PROT_READ | PROT_WRITE) == 0) return 4;
      if (::fchmod(fd, 0666) == 0) return 5;
    }
    return 0;
  });
  if (!exit_code) GTEST_SKIP() << "needs root to become another user";
  EXPECT_EQ(exit_code, 0) << "the number of the check that failed";
}

// ---- pids ---------------------------------------------------------------------------------------

// FR-089: in a pid namespace that does not hold its clients the daemon sees pid 0 for all of them:
// it tells them apart, says "unknown", and hears of their end by the socket.
TEST(PidNamespace, ClientsWithoutAPidAreToldApartAndNoticedWhenTheyDie) {
  const UniqueFd own(::open("/proc/self/ns/pid", O_RDONLY | O_CLOEXEC));
  if (::geteuid() != 0 || ::unshare(CLONE_NEWPID) != 0) {
    GTEST_SKIP() << "needs the right to make a pid namespace";
  }
  DaemonProcess daemon({.flags = {"--max-bytes=16M", "--hugepages=off"}});  // its process 1
  ASSERT_EQ(::setns(own.get(), CLONE_NEWPID), 0);
  ASSERT_TRUE(daemon.wait_ready()) << daemon.err();
  Turns turns;
  ForkedChild holder([&] {
    KvWorker worker(daemon.control_path());
    if (!worker.open("shared", 1) || !worker.append("shared", 20)) return 1;
    turns.arrive_and_wait();
    return 0;
  });
  ASSERT_TRUE(turns.wait_for_child());
  KvWorker other(daemon.control_path());
  ASSERT_TRUE(other.open("own", 1));
  const auto busy = other.open("shared", 1);
  ASSERT_FALSE(busy.has_value());
  EXPECT_TRUE(busy.error().is(ErrorCode::session_busy));
  EXPECT_NE(why(busy).find("pid unknown"), std::string::npos) << why(busy);
  const std::string contexts = admin_get(daemon, "/contexts");
  EXPECT_NE(contexts.find("\"pid\": null"), std::string::npos) << contexts;
  EXPECT_EQ(contexts.find("\"pid\": 0"), std::string::npos) << contexts;
  (void)RawClient(daemon.control_path()).ask(Bytes(1));  // which is logged

  holder.kill_and_wait();
  EXPECT_TRUE(eventually([&] { return other.open("shared", 1).has_value(); }));
  EXPECT_EQ(other.context("shared").length(), TokenCount{20});
  EXPECT_TRUE(other.append("own", 1).has_value());
  EXPECT_EQ(daemon.stop(), 0) << daemon.err();
  // Its log is whole now.
  EXPECT_NE(daemon.err().find("event=protocol-error"), std::string::npos) << daemon.err();
  EXPECT_EQ(daemon.err().find("pid=0"), std::string::npos) << daemon.err();
}

// ---- other users --------------------------------------------------------------------------------

class OtherUsers : public UnderFire {};

bool can_connect_to_stream(const std::string& path) {
  const UniqueFd fd(::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0));
  const auto address = socket_address(path);
  return ::connect(fd.get(), reinterpret_cast<const sockaddr*>(&*address), sizeof *address) == 0;
}

// FR-094: to another user a session is what one that never was is, to the last byte of the answer.
// Nor does it see lists of sessions, or the daemon's descriptors.
TEST_F(OtherUsers, FindNothingOfASessionWhoseNameTheyKnow) {
  Attached ours(daemon_.control_path(), Access::write);
  ASSERT_TRUE(is_done(ours.client.open("secret", 7)));
  const auto exit_code = as_user(daemon_, kStranger, [&] {
    Attached theirs(daemon_.control_path(), Access::write);
    if (!theirs.ok() || theirs.reply.boot_token == ours.reply.boot_token) return 1;
    for (const std::uint64_t epoch : {1U, 7U, 8U}) {
      const auto same = [](const OperationResult& a, const OperationResult& b) {
        return is_unknown(a) && std::memcmp(&a, &b, sizeof a) == 0;
      };
      RawClient& client = theirs.client;
      if (!same(client.explain("secret", epoch, 0), client.explain("never", epoch, 0))) return 2;
      if (!same(client.release("secret", epoch), client.release("never", epoch))) return 3;
    }
    // Nor is there a stale epoch for it, or a lease of somebody's.
    if (!is_done(theirs.client.open("secret", 1))) return 4;
    if (can_connect_to_stream(daemon_.admin_path()) || errno != EACCES) return 5;
    const std::string process = "/proc/" + std::to_string(daemon_.pid());
    for (const char* place : {"/fd", "/map_files", "/mem", "/maps", "/environ"}) {
      if (::open((process + place).c_str(), O_RDONLY | O_CLOEXEC) >= 0) return 6;
    }
    return 0;
  });
  if (!exit_code) GTEST_SKIP() << "needs root to become another user";
  EXPECT_EQ(exit_code, 0) << "the number of the check that failed";
  EXPECT_TRUE(is_done(ours.client.explain("secret", 7, 0)));
}

// Where chunks begin in the arena of what the client attached to.
std::uint64_t first_chunk(const Attached& attached) {
  TablesHeader header{};
  if (::pread(attached.tables(), static_cast<void*>(&header), sizeof header, 0) !=
      static_cast<ssize_t>(sizeof header)) {
    return 0;
  }
  return FileLayout::of(header.capacities, decode_geometry(header.geometry)).chunks.value();
}

using Page = std::array<std::uint64_t, 512>;

// Each page of the arena, from the first chunk on, until one cannot be used. Reading it gives no
// memory to a hole. Whether there are pages and all of them were used.
template <class Use>
[[nodiscard]] bool with_each_page(const Attached& attached, Use use) {
  Page page;
  const auto begin = static_cast<off_t>(first_chunk(attached));
  const auto end = static_cast<off_t>(attached.reply.arena_bytes);
  for (auto at = begin; at < end; at += sizeof page) {
    if (::pread(attached.arena(), page.data(), sizeof page, at) != sizeof page) return false;
    if (!use(page, at)) return false;
  }
  return 0 < begin && begin < end;
}

std::uint64_t memory_of_arena(const Attached& attached) {
  struct stat status {};
  ::fstat(attached.arena(), &status);
  return static_cast<std::uint64_t>(status.st_blocks) * 512;
}

constexpr std::uint64_t kMarker = 0x6d61'726b'6564'2121;

// How often the marker is in the arena; nothing where not all of it could be seen.
std::optional<std::int64_t> marks_in(const Attached& attached) {
  std::int64_t marks = 0;
  const bool all_seen = with_each_page(attached, [&](const Page& page, off_t) {
    marks += std::ranges::count(page, kMarker);
    return true;
  });
  return all_seen ? std::optional(marks) : std::nullopt;
}

// FR-097: memory that went from one user to another through the budget holds nothing of the first
// one's, in granted room, behind the length, or anywhere else in what the second one can map.
TEST(UsedMemory, ComesToAnotherUserWithoutABitOfWhatWasInIt) {
  constexpr std::uint32_t kTokens = 2'000;  // of 512 bytes: nearly all of the budget
  DaemonProcess daemon({.flags = {"--max-bytes=1M", "--hugepages=off", "--chunk-tokens=16"}});
  ASSERT_TRUE(daemon.wait_ready()) << daemon.err();
  Attached first(daemon.control_path(), Access::write);
  ASSERT_TRUE(first.ok());
  const auto fill_the_budget = [](Attached& attached) {
    const OperationResult opened = attached.client.open("s", 1);
    return is_done(opened) && is_done(attached.client.append("s", 1, opened.generation, kTokens));
  };
  ASSERT_TRUE(fill_the_budget(first));
  ASSERT_TRUE(with_each_page(first, [&](Page& page, off_t at) {
    page.fill(kMarker);
    return ::pwrite(first.arena(), page.data(), sizeof page, at) == sizeof page;
  }));
  ASSERT_GE(marks_in(first).value_or(0), kTokens * 512 / sizeof kMarker);
  ASSERT_TRUE(is_done(first.client.release("s", 1)));

  const auto exit_code = as_user(daemon, kStranger, [&] {
    Attached second(daemon.control_path(), Access::write);
    if (!second.ok() || !fill_the_budget(second)) return 1;
    if (memory_of_arena(second) < kTokens * 512) return 2;  // it has what the first one had
    const auto marks = marks_in(second);
    if (!marks) return 3;
    return marks == 0 ? 0 : 4;
  });
  if (!exit_code) GTEST_SKIP() << "needs root to become another user";
  EXPECT_EQ(exit_code, 0) << "the number of the check that failed";
  EXPECT_EQ(daemon.stop(), 0) << daemon.err();
}

// ---- recipes ------------------------------------------------------------------------------------

// FR-119: a shard of the same model and layers with one other field is refused by that field's
// name, also where a token has as many bytes.
TEST_F(Descriptors, ARecipeThatDiffersInOneFieldIsRefusedByItsName) {
  const Attached ours(daemon_.control_path(), Access::write);
  struct Other {
    const char* field;
    void (*change)(RecipeFields&);
  };
  const std::vector<Other> others{
      {"dtype", [](RecipeFields& f) { f.dtype = DType::bf16; }},  // as many bytes
      {"dtype", [](RecipeFields& f) { f.dtype = DType::f32; }},
      {"kv_heads", [](RecipeFields& f) { f.kv_heads = 4; }},
      {"key_dim", [](RecipeFields& f) { f.key_dim = 64; }},
      {"value_dim", [](RecipeFields& f) { f.value_dim = 0; }},
      // As many bytes in other shapes.
      {"kv_heads", [](RecipeFields& f) { f.kv_heads *= 2, f.key_dim /= 2, f.value_dim /= 2; }},
      {"key_dim", [](RecipeFields& f) { f.key_dim += 16, f.value_dim -= 16; }},
  };
  for (const Other& other : others) {
    RecipeFields fields = small_recipe().fields();
    other.change(fields);
    RawClient client(daemon_.control_path());
    client.hello();
    const RawReply reply = client.attach(Recipe::make(fields).value(), Access::write);
    EXPECT_TRUE(reply.is_error(ErrorCode::incompatible_recipe)) << other.field;
    EXPECT_NE(reply.text.find(other.field), std::string::npos) << reply.text;
    EXPECT_EQ(reply.descriptors.count, 0U);
  }
}

}  // namespace
}  // namespace hotkv::testing
