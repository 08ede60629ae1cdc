// Who may do what with a shard's files, and when a client counts as gone.

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <optional>
#include <string>

#include "shared/layout.hpp"
#include "shared/words.hpp"
#include "tests/support/daemon_process.hpp"
#include "tests/support/forked_child.hpp"
#include "tests/support/other_user.hpp"
#include "tests/support/raw_client.hpp"

namespace hotkv::testing {
namespace {

using namespace protocol;

class ControlAccess : public ::testing::Test {
 protected:
  struct Attached {
    RawClient client;
    AttachReply reply;
    ReceivedDescriptors files;

    [[nodiscard]] int tables() const { return files.fds[0].get(); }
    [[nodiscard]] int arena() const { return files.fds[1].get(); }
    [[nodiscard]] int pages() const { return files.fds[2].get(); }
  };

  void SetUp() override { ASSERT_TRUE(daemon_.wait_ready()) << daemon_.err(); }

  Attached attach(Access access) {
    RawClient client(daemon_.control_path());
    client.hello();
    RawReply reply = client.attach(small_recipe(), access);
    EXPECT_EQ(reply.header.status, 0U) << reply.text;
    EXPECT_EQ(reply.descriptors.count, kAttachDescriptors);
    return {std::move(client), reply.body_as<AttachReply>(), std::move(reply.descriptors)};
  }

  template <class Body>
  std::optional<int> as_user(uid_t uid, Body body) {
    return testing::as_user(daemon_, uid, body);
  }

  DaemonProcess daemon_{{.flags = {"--max-bytes=16M", "--hugepages=off", "--chunk-tokens=16"}}};
};

TEST_F(ControlAccess, FilesAreAsLargeAsTheReplySaysAndOfMode0600) {
  const Attached writer = attach(Access::write);
  const std::uint64_t sizes[]{writer.reply.tables_bytes, writer.reply.arena_bytes,
                              writer.reply.pages_bytes};
  for (std::size_t index = 0; index < kAttachDescriptors; ++index) {
    struct stat status {};
    ASSERT_EQ(::fstat(writer.files.fds[index].get(), &status), 0);
    EXPECT_EQ(static_cast<std::uint64_t>(status.st_size), sizes[index]);
    EXPECT_EQ(status.st_mode & 07777, 0600U);
  }
}

// FR-085: a reader neither writes nor punches.
TEST_F(ControlAccess, TablesAreReadOnlyForEverybodyAndTheArenaForReaders) {
  const Attached writer = attach(Access::write);
  const Attached reader = attach(Access::read);
  for (const int fd : {writer.tables(), reader.tables(), reader.arena()}) {
    EXPECT_EQ(::fcntl(fd, F_GETFL) & O_ACCMODE, O_RDONLY);
    EXPECT_EQ(::mmap(nullptr, 4096, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0), MAP_FAILED);
    EXPECT_LT(::write(fd, "x", 1), 0);
    EXPECT_NE(::fallocate(fd, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, 0, 4096), 0);
  }
  EXPECT_EQ(::fcntl(writer.arena(), F_GETFL) & O_ACCMODE, O_RDWR);
}

// FR-085: no client can shrink a file under the daemon.
TEST_F(ControlAccess, NobodyCanResizeOrSealAFile) {
  const Attached writer = attach(Access::write);
  for (const int fd : {writer.tables(), writer.arena(), writer.pages()}) {
    EXPECT_NE(::ftruncate(fd, 0), 0);
    EXPECT_NE(::ftruncate(fd, off_t{1} << 40), 0);
    EXPECT_NE(::fcntl(fd, F_ADD_SEALS, F_SEAL_WRITE), 0);
  }
}

TEST_F(ControlAccess, AnotherUserCannotReopenAReadersDescriptorForWriting) {
  const Attached reader = attach(Access::read);
  const auto exit_code = as_user(kStranger, [&] {
    for (const int fd : {reader.tables(), reader.arena()}) {
      const std::string path = "/proc/self/fd/" + std::to_string(fd);
      if (::open(path.c_str(), O_RDWR | O_CLOEXEC) >= 0 || errno != EACCES) return 1;
    }
    return 0;
  });
  if (!exit_code) GTEST_SKIP() << "needs root to become another user";
  EXPECT_EQ(exit_code, 0);
}

TEST_F(ControlAccess, AReaderMayExplainAndReleaseButNothingThatWrites) {
  Attached writer = attach(Access::write);
  Attached reader = attach(Access::read);
  const OperationResult opened = writer.client.open("session", 1);
  const ContextName name = context_name("session", 1);
  const auto refused = [&](const Bytes& frame) {
    return reader.client.ask(frame).is_error(ErrorCode::read_only);
  };
  EXPECT_TRUE(refused(make_frame<OpenOperation>(Type::open, 1, {{name, {}}})));
  EXPECT_TRUE(
      refused(make_frame<AppendOperation>(Type::append, 1, {{name, opened.generation, 1}})));
  EXPECT_TRUE(refused(
      make_frame<TruncateOperation>(Type::truncate, 1, {{name, opened.generation, 0, 0, 0}})));
  EXPECT_TRUE(refused(make_frame<CloseOperation>(Type::close, 1, {{name, opened.generation, 0}})));
  EXPECT_TRUE(is_done(reader.client.explain("session", 1, 0)));
  EXPECT_TRUE(is_done(reader.client.release("session", 1)));
}

// FR-094: to another user the same name is a session that never was.
TEST_F(ControlAccess, AnotherUserHasShardsOfItsOwn) {
  Attached ours = attach(Access::write);
  ASSERT_TRUE(is_done(ours.client.open("session", 1)));
  const auto exit_code = as_user(kStranger, [&] {
    RawClient client(daemon_.control_path());
    client.hello();
    const RawReply reply = client.attach(small_recipe(), Access::write);
    if (reply.header.status != 0) return 1;
    if (reply.body_as<AttachReply>().boot_token == ours.reply.boot_token) return 2;
    const OperationResult told = client.explain("session", 1, 0);
    const bool unknown = told.outcome == static_cast<std::uint32_t>(Outcome::miss) &&
                         told.code == static_cast<std::uint32_t>(MissReason::unknown_session);
    if (!unknown) return 3;
    return is_done(client.open("session", 9)) ? 0 : 4;
  });
  if (!exit_code) GTEST_SKIP() << "needs root to become another user";
  EXPECT_EQ(exit_code, 0) << daemon_.err();
  EXPECT_TRUE(is_done(ours.client.explain("session", 1, 0)));
}

TEST_F(ControlAccess, TheUserWithoutANameIsRefused) {
  const auto exit_code = as_user(65534, [&] {
    RawClient client(daemon_.control_path());
    client.hello();
    return client.attach(small_recipe(), Access::read).is_error(ErrorCode::access_denied) ? 0 : 1;
  });
  if (!exit_code) GTEST_SKIP() << "needs root to become another user";
  EXPECT_EQ(exit_code, 0);
}

// The pages file as a client maps it: not in forked children, and with the descriptor closed.
class MappedPage {
 public:
  explicit MappedPage(UniqueFd pages) {
    struct stat status {};
    ::fstat(pages.get(), &status);
    size_ = static_cast<std::size_t>(status.st_size);
    address_ = ::mmap(nullptr, size_, PROT_READ | PROT_WRITE, MAP_SHARED, pages.get(), 0);
    ::madvise(address_, size_, MADV_DONTFORK);
  }
  ~MappedPage() { ::munmap(address_, size_); }
  MappedPage(const MappedPage&) = delete;
  MappedPage& operator=(const MappedPage&) = delete;

 private:
  void* address_;
  std::size_t size_;
};

TEST_F(ControlAccess, ALeaseOutlivesTheConnectionAsLongAsThePageIsMapped) {
  Attached first = attach(Access::write);
  const OperationResult opened = first.client.open("session", 1);
  std::optional<MappedPage> page(std::in_place, std::move(first.files.fds[2]));
  Attached second = attach(Access::write);
  EXPECT_TRUE(is_error(second.client.open("session", 1), ErrorCode::session_busy));

  // Hung up, but it may be writing: the next holder gets a generation of its own.
  first.client.hang_up();
  OperationResult taken = second.client.open("session", 1);
  for (int attempt = 0; attempt < 1000 && !is_done(taken); ++attempt) {
    taken = second.client.open("session", 1);
  }
  ASSERT_TRUE(is_done(taken));
  EXPECT_EQ(taken.generation, opened.generation + 1);
}

TEST_F(ControlAccess, WithItsPageGoneAClientIsGone) {
  Attached first = attach(Access::write);
  const OperationResult opened = first.client.open("session", 1);
  Attached second = attach(Access::write);
  first.files = {};
  first.client.hang_up();
  OperationResult taken = second.client.open("session", 1);
  for (int attempt = 0; attempt < 1000 && !is_done(taken); ++attempt) {
    taken = second.client.open("session", 1);
  }
  ASSERT_TRUE(is_done(taken));
  EXPECT_EQ(taken.generation, opened.generation);
  const Attached third = attach(Access::write);
  EXPECT_EQ(third.reply.page, first.reply.page);
}

TEST_F(ControlAccess, AForkedChildDoesNotKeepItsParentsPageAlive) {
  Attached first = attach(Access::write);
  const OperationResult opened = first.client.open("session", 1);
  std::optional<MappedPage> page(std::in_place, std::move(first.files.fds[2]));
  first.files = {};
  ForkedChild child([] {
    ::pause();
    return 0;
  });
  page.reset();
  first.client.hang_up();  // the child still holds the socket, so nobody hears of it
  Attached second = attach(Access::write);
  const OperationResult taken = second.client.open("session", 1);
  ASSERT_TRUE(is_done(taken));
  EXPECT_EQ(taken.generation, opened.generation);
  // The connection that nobody speaks on any more is ended too.
  EXPECT_EQ(second.client.hello().header.status,
            static_cast<std::uint32_t>(ErrorCode::protocol_error));
  EXPECT_NE(exchange_text(daemon_.admin_path(), "GET /status HTTP/1.0\r\n\r\n")
                .find("\"client-gone\": 1"),
            std::string::npos);
}

TEST_F(ControlAccess, WhatAWriterPublishesTheDaemonCountsAndTruncates) {
  Attached writer = attach(Access::write);
  const OperationResult opened = writer.client.open("session", 1);
  const OperationResult granted = writer.client.append("session", 1, opened.generation, 20);
  ASSERT_TRUE(is_done(granted));
  void* const arena = ::mmap(nullptr, writer.reply.arena_bytes, PROT_READ | PROT_WRITE, MAP_SHARED,
                             writer.arena(), 0);
  ASSERT_NE(arena, MAP_FAILED);
  auto& line = static_cast<LengthLine*>(arena)[granted.slot];
  ASSERT_TRUE(publish(line.word, Generation{granted.generation}, TokenCount{0}, TokenCount{20}));
  EXPECT_TRUE(is_done(writer.client.explain("session", 1, 20)));
  const OperationResult cut = writer.client.truncate("session", 1, granted.generation, 20, 5);
  ASSERT_TRUE(is_done(cut));
  EXPECT_EQ(cut.length_tokens, 5U);
  EXPECT_NE(cut.generation, granted.generation);
  EXPECT_FALSE(publish(line.word, Generation{granted.generation}, TokenCount{20}, TokenCount{21}));
  ::munmap(arena, writer.reply.arena_bytes);
}

}  // namespace
}  // namespace hotkv::testing
