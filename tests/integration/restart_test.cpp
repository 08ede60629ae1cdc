// A daemon that dies and its successor, with a service manager between them that keeps the files.

#include <fcntl.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <vector>

#include "tests/integration/restarting.hpp"
#include "tests/support/raw_client.hpp"

namespace hotkv::testing {
namespace {

using protocol::AttachReply;
using protocol::Type;

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
      come_back(page_.cookie, page_.page, Access::read).is_error(ErrorCode::shard_replaced));
  EXPECT_EQ(come_back().header.status, 0U);
}

// Cookies can be read by every client of the shard.
TEST_F(ComingBack, WithAnotherAccessEndsNobodysConnection) {
  attach();
  const auto opened = client_->open("a", 1);
  RawClient holder = std::move(*client_);
  EXPECT_TRUE(
      come_back(page_.cookie, page_.page, Access::read).is_error(ErrorCode::shard_replaced));
  EXPECT_TRUE(is_done(holder.append("a", 1, opened.generation, 40)));
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

}  // namespace
}  // namespace hotkv::testing
