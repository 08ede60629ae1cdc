#include "daemon/platform/page_lock.hpp"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <unistd.h>

#include <optional>
#include <string>
#include <utility>

#include <gtest/gtest.h>

#include "shared/mapping.hpp"
#include "tests/support/forked_child.hpp"

namespace hotkv::platform {
namespace {

using testing::ForkedChild;

constexpr ByteRange kFirstPage{0, 4096};
constexpr ByteRange kSecondPage{4096, 4096};

// Two processes take turns over this pair: one says, the other hears.
class Turns {
 public:
  Turns() {
    int fds[2] = {-1, -1};
    EXPECT_EQ(::socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, fds), 0);
    parent_.reset(fds[0]);
    child_.reset(fds[1]);
  }
  // In the parent, after the fork: from then on the child's death is heard.
  void begin_parent() { child_.reset(); }
  void tell_child() const { (void)!::write(parent_.get(), "x", 1); }
  [[nodiscard]] bool hear_child() const { return hear(parent_.get()); }
  void tell_parent() const { (void)!::write(child_.get(), "x", 1); }
  [[nodiscard]] bool hear_parent() const { return hear(child_.get()); }
  [[nodiscard]] int child_fd() const { return child_.get(); }

 private:
  static bool hear(int fd) {
    char byte = 0;
    return ::read(fd, &byte, 1) == 1;
  }
  UniqueFd parent_;
  UniqueFd child_;
};

class PageLock : public ::testing::Test {
 protected:
  PageLock() : pages_(*MemoryFile::create("pages", 64 << 10)) {}

  [[nodiscard]] bool is_locked(ByteRange range) const {
    const auto locked = is_range_locked(pages_.fd(), range);
    EXPECT_TRUE(locked.has_value());
    return locked.value_or(false);
  }

  // A client that holds the first page by its mapping alone and says so, then runs `body`.
  template <class Body>
  ForkedChild start_client(Turns& turns, Body body) {
    auto fd = lock_range(pages_, kFirstPage);
    EXPECT_TRUE(fd.has_value()) << fd.error().message();
    ForkedChild child([&] {
      auto page = map_page(fd->get());
      fd->reset();
      turns.tell_parent();
      return body(std::move(page));
    });
    turns.begin_parent();
    fd->reset();
    EXPECT_TRUE(turns.hear_child());
    return child;
  }

  static std::optional<Mapping> map_page(int fd) {
    auto page =
        Mapping::map(fd, {.size_bytes = 4096, .access = MapAccess::read_write}, "page of test");
    if (!page) return std::nullopt;
    return std::move(*page);
  }

  MemoryFile pages_;
};

TEST_F(PageLock, OneOwnerAtATimeAndOtherPagesStayFree) {
  const auto first = lock_range(pages_, kFirstPage);
  ASSERT_TRUE(first.has_value());
  EXPECT_TRUE(is_locked(kFirstPage));
  EXPECT_FALSE(is_locked(kSecondPage));
  const auto second = lock_range(pages_, kFirstPage);
  ASSERT_FALSE(second.has_value());
  EXPECT_EQ(second.error().code, ErrorCode::session_busy);
  EXPECT_TRUE(lock_range(pages_, kSecondPage).has_value());
}

TEST_F(PageLock, AnEmptyRangeIsRefusedBecauseItWouldMeanTheWholeFile) {
  EXPECT_EQ(lock_range(pages_, {0, 0}).error().code, ErrorCode::invalid_argument);
  EXPECT_EQ(is_range_locked(pages_.fd(), {0, 0}).error().code, ErrorCode::invalid_argument);
}

TEST_F(PageLock, SurvivesTheClosedDescriptorAndEndsWithTheMapping) {
  auto fd = lock_range(pages_, kFirstPage);
  ASSERT_TRUE(fd.has_value());
  auto page = map_page(fd->get());
  ASSERT_TRUE(page.has_value());
  fd->reset();
  EXPECT_TRUE(is_locked(kFirstPage));
  page.reset();
  EXPECT_FALSE(is_locked(kFirstPage));
}

TEST_F(PageLock, ClosingAnotherDescriptorOfTheFileDoesNotDropIt) {
  const auto fd = lock_range(pages_, kFirstPage);
  ASSERT_TRUE(fd.has_value());
  EXPECT_TRUE(pages_.reopen(MapAccess::read_write).has_value());
  EXPECT_TRUE(is_locked(kFirstPage));
}

TEST_F(PageLock, LastsThroughStopAndEndsWithKill) {
  Turns turns;
  ForkedChild client = start_client(turns, [&](std::optional<Mapping> page) {
    (void)turns.hear_parent();
    return page ? 0 : 1;
  });
  EXPECT_TRUE(is_locked(kFirstPage));
  client.stop();
  EXPECT_TRUE(is_locked(kFirstPage));
  client.kill_and_wait();
  EXPECT_FALSE(is_locked(kFirstPage));
}

TEST_F(PageLock, EndsWithAnOrdinaryExit) {
  Turns turns;
  ForkedChild client = start_client(
      turns, [&](std::optional<Mapping> page) { return turns.hear_parent() && page ? 0 : 1; });
  EXPECT_TRUE(is_locked(kFirstPage));
  turns.tell_child();
  EXPECT_EQ(client.exit_code(), 0);
  EXPECT_FALSE(is_locked(kFirstPage));
}

TEST_F(PageLock, AForkedChildDoesNotKeepItsParentsPageAlive) {
  Turns turns;
  Turns grandchild_turns;
  ForkedChild client = start_client(turns, [&](std::optional<Mapping> page) -> int {
    const ForkedChild grandchild([&] {
      turns.tell_parent();
      return grandchild_turns.hear_parent() ? 0 : 1;
    });
    (void)turns.hear_parent();
    (void)grandchild.pid();
    ::_exit(page ? 0 : 1);  // leaves the grandchild behind, alive
  });
  ASSERT_TRUE(turns.hear_child());  // the grandchild runs
  EXPECT_TRUE(is_locked(kFirstPage));
  turns.tell_child();
  EXPECT_EQ(client.exit_code(), 0);
  EXPECT_FALSE(is_locked(kFirstPage));
  grandchild_turns.tell_child();  // it ends
}

TEST_F(PageLock, EndsWithExecThoughAForkedChildHoldsTheConnectionAndThePidLives) {
  Turns turns;
  Turns grandchild_turns;
  ForkedChild client = start_client(turns, [&](std::optional<Mapping> page) {
    if (!page || ::fork() == 0) {
      ::_exit(grandchild_turns.hear_parent() ? 0 : 1);  // holds the client's end of `turns`
    }
    (void)turns.hear_parent();
    ::dup2(turns.child_fd(), STDIN_FILENO);
    ::dup2(turns.child_fd(), STDOUT_FILENO);
    ::execl("/bin/cat", "cat", nullptr);
    return 1;
  });
  EXPECT_TRUE(is_locked(kFirstPage));
  turns.tell_child();
  turns.tell_child();
  ASSERT_TRUE(turns.hear_child());  // the new program runs and answers: same pid, live connection
  EXPECT_EQ(::kill(client.pid(), 0), 0);
  EXPECT_FALSE(is_locked(kFirstPage));
  grandchild_turns.tell_child();
}

}  // namespace
}  // namespace hotkv::platform
