// A daemon that dies and its successor, with a service manager between them that keeps the files.

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "shared/layout.hpp"
#include "tests/support/kv_worker.hpp"
#include "tests/support/raw_client.hpp"

namespace hotkv::testing {
namespace {

using platform::KeptDescriptor;
using protocol::AttachReply;
using protocol::Type;

constexpr std::size_t kFilesOfAShard = 3;
constexpr std::size_t kOwnFile = 1;  // the count of failed adoptions

class Restart : public ::testing::Test {
 protected:
  void SetUp() override { ASSERT_TRUE(daemon_->wait_ready()) << daemon_->err(); }

  static std::unique_ptr<DaemonProcess> daemon_with(DaemonOptions options) {
    options.flags.insert(options.flags.end(), {"--hugepages=off", "--chunk-tokens=16"});
    return std::make_unique<DaemonProcess>(std::move(options));
  }
  void begin_anew_with(DaemonOptions options) {
    daemon_ = daemon_with(std::move(options));
    ASSERT_TRUE(daemon_->wait_ready()) << daemon_->err();
  }
  void kill_and_start_again() {
    daemon_->kill();
    daemon_->start_again();
    ASSERT_TRUE(daemon_->wait_ready()) << daemon_->err();
  }
  [[nodiscard]] bool log_has(const std::string& text) const {
    return daemon_->err().find(text) != std::string::npos;
  }
  [[nodiscard]] std::size_t log_count(const std::string& text) const {
    const std::string log = daemon_->err();
    std::size_t count = 0;
    for (auto at = log.find(text); at != std::string::npos; at = log.find(text, at + 1)) ++count;
    return count;
  }
  [[nodiscard]] nlohmann::json status() const { return admin_page(*daemon_, "/status"); }
  // Published bytes of a session as a client sees them that attaches now; its length, or why not.
  [[nodiscard]] std::string look_at(const std::string& session, std::uint32_t tokens) const {
    KvWorker reader(daemon_->control_path(), worker_recipe(), Access::read);
    const auto view =
        reader.client().resolve(SessionId::from(session).value(), Epoch{1}, TokenCount{tokens});
    if (!view) return view.error().message();
    return wrong_bytes(worker_recipe(), session, 1, *view) == 0 ? "" : "wrong bytes";
  }

  std::unique_ptr<DaemonProcess> daemon_ = daemon_with({.flags = {"--max-bytes=16M"}});
};

TEST_F(Restart, FilesAreInTheStoreBeforeTheFirstClientHasThem) {
  EXPECT_EQ(daemon_->store().kept().size(), kOwnFile);
  const RawClient client = attached_client(daemon_->control_path());
  EXPECT_EQ(daemon_->store().kept().size(), kOwnFile + kFilesOfAShard);
}

TEST_F(Restart, WhatWasPublishedOutlivesAKillByteForByte) {
  auto worker = std::make_unique<KvWorker>(daemon_->control_path());
  for (const std::string session : {"a", "b", "c"}) {
    ASSERT_EQ(why(worker->open(session, 1)), "");
    ASSERT_EQ(why(worker->append(session, 50)), "");
  }
  const std::uint64_t boot_token = worker->client().boot_token();
  worker.reset();
  kill_and_start_again();
  for (const std::string session : {"a", "b", "c"}) EXPECT_EQ(look_at(session, 50), "");
  KvWorker next(daemon_->control_path());
  EXPECT_EQ(next.client().boot_token(), boot_token);
  ASSERT_EQ(why(next.open("a", 1)), "");
  ASSERT_EQ(why(next.append("a", 7)), "");
  EXPECT_EQ(look_at("a", 57), "");
  EXPECT_EQ(broken_invariant(*daemon_), "");
  EXPECT_EQ(status().at("adopted_shards"), 1);
}

// FR-062: the memory files are stored once, whatever happens later.
TEST_F(Restart, ManyRestartsStoreNothingTwice) {
  KvWorker(daemon_->control_path()).open("a", 1).value();
  for (int round = 0; round < 20; ++round) kill_and_start_again();
  EXPECT_EQ(daemon_->store().kept().size(), kOwnFile + kFilesOfAShard);
  EXPECT_EQ(status().at("adopted_shards"), 1);
  EXPECT_EQ(status().at("refused_shards"), 0);
}

// FR-058: nothing at all, a context without tokens, one with room that nobody wrote in, ids of odd
// bytes and of the greatest length.
TEST_F(Restart, AnOrderlyStopLosesNothingEither) {
  EXPECT_EQ(daemon_->stop(), 0);
  daemon_->start_again();
  ASSERT_TRUE(daemon_->wait_ready());
  const std::vector<std::string> odd{"a", std::string("z\0\xff\n\"", 5), std::string(128, 'm')};
  {
    KvWorker worker(daemon_->control_path());
    for (const std::string& session : odd) {
      ASSERT_EQ(why(worker.open(session, 1)), "");
      ASSERT_EQ(why(worker.append(session, 20)), "");
    }
    ASSERT_EQ(why(worker.open("without tokens", 1)), "");
    ASSERT_EQ(why(worker.open("reserved", 1)), "");
    ASSERT_TRUE(worker.context("reserved").append(TokenCount{100}).has_value());
  }
  EXPECT_EQ(daemon_->stop(), 0);
  daemon_->start_again();
  ASSERT_TRUE(daemon_->wait_ready());
  for (const std::string& session : odd) EXPECT_EQ(look_at(session, 20), "");
  EXPECT_EQ(look_at("without tokens", 0), "");
  EXPECT_EQ(look_at("reserved", 0), "");
  EXPECT_EQ(broken_invariant(*daemon_), "");
}

TEST_F(Restart, AManagerThatKeepsNothingIsFoundOutAndSaidLoudly) {
  begin_anew_with({.flags = {"--max-bytes=16M"}, .kept_descriptors_max = 0});
  const RawClient client = attached_client(daemon_->control_path());
  (void)daemon_->store();  // takes the messages, and keeps nothing
  ASSERT_TRUE(eventually([&] { return log_count("event=memory-not-kept") == 2; }));
  EXPECT_TRUE(log_has("FileDescriptorStoreMax="));
  EXPECT_EQ(status().at("restart"), "cold");
}

TEST_F(Restart, AManagerThatKeepsAllIsFoundOutToo) {
  const RawClient client = attached_client(daemon_->control_path());
  (void)daemon_->store();
  EXPECT_TRUE(eventually([&] { return status().at("restart") == "keeps"; }));
  kill_and_start_again();
  EXPECT_TRUE(eventually([&] { return status().at("restart") == "keeps"; }));
  EXPECT_FALSE(log_has("event=memory-not-kept"));
}

// One that keeps the first shard and has no room for the second.
TEST_F(Restart, AStoreThatIsFullLosesOnlyWhatDidNotFit) {
  begin_anew_with({.flags = {"--max-bytes=16M"}, .kept_descriptors_max = kOwnFile + 3});
  const RawClient first =
      attached_client(daemon_->control_path(), Access::write, small_recipe("a"));
  const RawClient second =
      attached_client(daemon_->control_path(), Access::write, small_recipe("b"));
  (void)daemon_->store();
  ASSERT_TRUE(eventually([&] { return log_count("event=memory-not-kept") == 1; }));
  kill_and_start_again();
  EXPECT_EQ(status().at("adopted_shards"), 1);
  EXPECT_TRUE(shard_status(*daemon_, "a").is_object());
  EXPECT_FALSE(shard_status(*daemon_, "b").is_object());
}

// ---- coming back --------------------------------------------------------------------------------

// A client that knows its page, over connection after connection.
class ComingBack : public Restart {
 protected:
  void attach() {
    client_.emplace(daemon_->control_path());
    (void)client_->hello();
    const RawReply reply = client_->attach(small_recipe(), Access::write);
    page_ = reply.body_as<AttachReply>();
    lock_ = UniqueFd(::fcntl(reply.descriptors.fds[2].get(), F_DUPFD_CLOEXEC, 0));
  }
  RawReply come_back(std::uint64_t cookie, std::uint32_t page, Access access = Access::write,
                     const Recipe& recipe = small_recipe()) {
    client_.emplace(daemon_->control_path());
    (void)client_->hello();
    return client_->ask(make_frame(
        Type::attach, 2,
        std::vector{protocol::AttachRequest{
            encode_recipe(recipe), static_cast<std::uint32_t>(access), page + 1, cookie}}));
  }
  RawReply come_back() { return come_back(page_.cookie, page_.page); }

  std::optional<RawClient> client_;
  AttachReply page_{};
  UniqueFd lock_;  // what a mapping of the page would hold
};

TEST_F(ComingBack, AClientHasItsPageAndItsLeaseAsBefore) {
  attach();
  const auto opened = client_->open("a", 1);
  ASSERT_TRUE(is_done(client_->append("a", 1, opened.generation, 40)));
  kill_and_start_again();
  const RawReply back = come_back();
  ASSERT_EQ(back.header.status, 0U) << back.text;
  EXPECT_EQ(back.body_as<AttachReply>().cookie, page_.cookie);
  EXPECT_EQ(back.body_as<AttachReply>().page, page_.page);
  EXPECT_EQ(back.body_as<AttachReply>().boot_token, page_.boot_token);
  EXPECT_EQ(back.body_as<AttachReply>().arena_bytes, page_.arena_bytes);
  EXPECT_EQ(back.descriptors.count, 0U);
  // The generation is the one it had: nothing of its own was ended.
  EXPECT_TRUE(is_done(client_->append("a", 1, opened.generation, 80)));
  EXPECT_TRUE(is_done(client_->close("a", 1, opened.generation)));
}

TEST_F(ComingBack, WorksWithoutADeathOfTheDaemonToo) {
  attach();
  const auto opened = client_->open("a", 1);
  const RawClient earlier = std::move(*client_);  // still connected: its hang-up was not seen
  ASSERT_EQ(come_back().header.status, 0U);
  EXPECT_TRUE(is_done(client_->append("a", 1, opened.generation, 40)));
  EXPECT_EQ(status().at("shards").at(0).at("clients"), 1);
  EXPECT_TRUE(eventually([&] { return status().at("server").at("connections") == 1; }));
}

TEST_F(ComingBack, OnlyTheClientOfThePageCan) {
  attach();
  kill_and_start_again();
  EXPECT_TRUE(come_back(page_.cookie + 1, page_.page).is_error(ErrorCode::shard_replaced));
  EXPECT_TRUE(come_back(page_.cookie, page_.page + 1).is_error(ErrorCode::shard_replaced));
  EXPECT_TRUE(come_back(page_.cookie, 0xffff'0000).is_error(ErrorCode::shard_replaced));
  EXPECT_TRUE(come_back(page_.cookie, page_.page, Access::write, small_recipe("other"))
                  .is_error(ErrorCode::shard_replaced));
  EXPECT_TRUE(
      come_back(page_.cookie, page_.page, Access::read).is_error(ErrorCode::invalid_argument));
  EXPECT_EQ(come_back().header.status, 0U);
}

TEST_F(ComingBack, IsRefusedOnceTheMappingIsGone) {
  attach();
  kill_and_start_again();
  lock_.reset();
  EXPECT_TRUE(come_back().is_error(ErrorCode::shard_replaced));
}

TEST_F(ComingBack, IsRefusedByADaemonWithOtherMemory) {
  attach();
  daemon_->kill();
  daemon_->store().clear();
  daemon_->start_again();
  ASSERT_TRUE(daemon_->wait_ready());
  EXPECT_TRUE(come_back().is_error(ErrorCode::shard_replaced));
}

TEST_F(ComingBack, ALeaseWaitsAWhileForItsHolder) {
  attach();
  ASSERT_TRUE(is_done(client_->open("a", 1)));
  kill_and_start_again();
  RawClient other = attached_client(daemon_->control_path());
  EXPECT_TRUE(is_error(other.open("a", 1), ErrorCode::session_busy));
  // Whoever is gone for good is waited for by nobody.
  lock_.reset();
  EXPECT_TRUE(is_done(other.open("a", 1)));
}

TEST_F(ComingBack, ALeaseIsTakenOverFromAHolderThatStaysAway) {
  attach();
  ASSERT_TRUE(is_done(client_->open("a", 1)));
  kill_and_start_again();
  RawClient other = attached_client(daemon_->control_path());
  EXPECT_TRUE(eventually([&] { return is_done(other.open("a", 1)); }));
}

// ---- the library over a restart -----------------------------------------------------------------

// Kills the daemon, and returns once the worker's library has seen it.
void kill_under(DaemonProcess& daemon, KvWorker& worker) {
  daemon.kill();
  ASSERT_TRUE(eventually([&] { return !worker.client().is_connected(); }));
}

void start_again_under(DaemonProcess& daemon, KvWorker& worker) {
  daemon.start_again();
  ASSERT_TRUE(daemon.wait_ready()) << daemon.err();
  ASSERT_TRUE(worker.client().wait_connected(std::chrono::seconds(20)));
}

// Promise 8 and 9, from a worker's side. FR-053: the restart is as fast as can be.
TEST_F(Restart, AWorkerGoesOnThroughTheDeathOfTheDaemon) {
  KvWorker worker(daemon_->control_path());
  ASSERT_EQ(why(worker.open("a", 1)), "");
  ASSERT_EQ(why(worker.append("a", 20)), "");
  const auto held = worker.client().resolve(SessionId::from("a").value(), Epoch{1}, TokenCount{20});
  ASSERT_TRUE(held.has_value());
  kill_under(*daemon_, worker);
  // Held views are readable, a grant can be written and published.
  EXPECT_EQ(wrong_bytes(worker_recipe(), "a", 1, *held), 0U);
  ASSERT_GE(worker.context("a").granted(), TokenCount{5});
  ASSERT_EQ(why(worker.append("a", 5)), "");
  const auto miss = worker.client().resolve(SessionId::from("a").value(), Epoch{1}, TokenCount{25});
  ASSERT_FALSE(miss.has_value());
  EXPECT_EQ(miss.error().reason, MissReason::daemon_unavailable);
  ASSERT_EQ(why(worker.append("a", 100)).empty(), false);  // beyond the grant
  start_again_under(*daemon_, worker);
  ASSERT_EQ(why(worker.append("a", 100)), "");
  EXPECT_EQ(look_at("a", 125), "");
  EXPECT_EQ(wrong_bytes(worker_recipe(), "a", 1, *held), 0U);
  ASSERT_EQ(why(worker.context("a").truncate(TokenCount{30})), "");
  EXPECT_EQ(look_at("a", 30), "");
  EXPECT_EQ(broken_invariant(*daemon_), "");
}

TEST_F(Restart, ALeaseGivenBackWhileTheDaemonIsAwayIsFreeAfterwards) {
  KvWorker worker(daemon_->control_path());
  ASSERT_EQ(why(worker.open("a", 1)), "");
  ASSERT_EQ(why(worker.append("a", 20)), "");
  kill_under(*daemon_, worker);
  worker.drop("a");
  start_again_under(*daemon_, worker);
  KvWorker other(daemon_->control_path());
  EXPECT_TRUE(eventually([&] { return other.open("a", 1).has_value(); }));
  EXPECT_EQ(why(other.append("a", 20)), "");
}

// FR-053, FR-055: other memory at the same path, same session, same length, other bytes.
TEST_F(Restart, AWorkerGoesOnWithOtherMemoryAndNeverSeesTheOldBytesAgain) {
  KvWorker worker(daemon_->control_path());
  ASSERT_EQ(why(worker.open("a", 1)), "");
  ASSERT_EQ(why(worker.append("a", 20)), "");
  const std::uint64_t boot_token = worker.client().boot_token();
  kill_under(*daemon_, worker);
  daemon_->store().clear();
  start_again_under(*daemon_, worker);
  EXPECT_NE(worker.client().boot_token(), boot_token);
  const auto late = worker.append("a", 100);
  ASSERT_FALSE(late.has_value());
  EXPECT_TRUE(late.error().is(MissReason::lost_in_restart)) << late.error().message();
  const auto view = worker.client().resolve(SessionId::from("a").value(), Epoch{1}, TokenCount{20});
  ASSERT_FALSE(view.has_value());
  EXPECT_EQ(view.error().reason, MissReason::unknown_session);
  ASSERT_EQ(why(worker.open("a", 1)), "");
  ASSERT_EQ(why(worker.append("a", 20, 1)), "");  // another version of the pattern
  const auto anew = worker.client().resolve(SessionId::from("a").value(), Epoch{1}, TokenCount{20});
  ASSERT_TRUE(anew.has_value());
  EXPECT_EQ(wrong_bytes(worker_recipe(), "a", 1, *anew, std::vector<std::uint32_t>(20, 1)), 0U);
}

// ---- what is kept is not always what was given --------------------------------------------------

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
