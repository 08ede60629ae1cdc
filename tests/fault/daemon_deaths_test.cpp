// The daemon as a process that dies at each store of a worker's life, in turn, and is started again
// with what its service manager kept.

#include <gtest/gtest.h>

#include <chrono>
#include <exception>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "tests/fault/crash_row.hpp"
#include "tests/support/bystanders.hpp"
#include "tests/support/kv_worker.hpp"
#include "tests/support/sanitized.hpp"

namespace hotkv::testing {
namespace {

using Clock = std::chrono::steady_clock;

constexpr std::uint64_t kChunks = 256;  // of 4 KiB: a mebibyte
constexpr int kStoresMax = 1000;        // far more than the script makes
constexpr std::chrono::seconds kPatience(20);

class DaemonDeaths : public ::testing::Test {
 protected:
  DaemonProcess daemon_{
      {.flags = {"--max-bytes=1M", "--hugepages=off", "--chunk-tokens=16", "--session-cap=4"},
       .program = "hotkvd_faults"}};
  int deaths_ = 0;
  std::optional<int> tends_with_;  // the store at which the next daemon dies in its adoption
  int deaths_in_adoption_ = 0;
  CrashRow row_{};

  // Starts it again without the fault if it has died.
  void tend() {
    if (!daemon_.has_ended()) return;
    ++deaths_;
    daemon_.kill();
    if (tends_with_) die_in_adoption(*std::exchange(tends_with_, std::nullopt));
    daemon_.set_variables({});
    daemon_.start_again();
    ASSERT_TRUE(daemon_.wait_ready()) << daemon_.err();
  }

  void note_outage(Clock::time_point since) {
    row_.until_next_grant.push_back(
        std::chrono::duration<double, std::milli>(Clock::now() - since).count());
  }

  // Dies at that store before it serves, or is killed once it does.
  void die_in_adoption(int store) {
    daemon_.set_variables({"PLANTED_FAULT=die-at-store=" + std::to_string(store)});
    daemon_.start_again();
    const bool has_died = !daemon_.wait_ready();
    deaths_in_adoption_ += has_died;
    daemon_.kill();
  }

  // A number of what /status says of the shard; nothing where nobody says it.
  std::optional<std::uint64_t> shard_number(const std::string& pointer) const {
    try {
      return shard_status(daemon_, "tiny")
          .at(nlohmann::json::json_pointer(pointer))
          .get<std::uint64_t>();
    } catch (const std::exception&) {
      return std::nullopt;
    }
  }

  // Asks until the answer is not that the daemon is away.
  template <class Ask>
  auto insist(KvWorker& worker, Ask ask) {
    std::optional<Clock::time_point> away_since;
    for (;;) {
      const auto asked = Clock::now();
      auto answer = ask();
      const bool is_away = !answer && !answer.error().is_miss() &&
                           answer.error().error().code == ErrorCode::daemon_unavailable;
      if (!is_away) {
        if (away_since) note_outage(*away_since);
        return answer;
      }
      if (!away_since) away_since = asked;
      EXPECT_TRUE(
          eventually([&] { return daemon_.has_ended() || worker.client().is_connected(); }));
      tend();
      EXPECT_TRUE(worker.client().wait_connected(kPatience));
      if (HasFailure()) return answer;
    }
  }

  // What a death at any store costs those who have nothing to do with it. Their own stores count as
  // well, so these are deaths beside those in turn.
  void die_beside_others(int deaths, std::optional<int> store_of_adoption) {
    using std::chrono::milliseconds;
    constexpr milliseconds kBefore{100}, kMargin{10}, kAfter{350};
    constexpr int kStoresBefore = 10'000, kStride = 97;
    for (int death = 0; death < deaths; ++death) {
      daemon_.kill();
      daemon_.store().clear();
      daemon_.set_variables(
          {"PLANTED_FAULT=die-at-store=" + std::to_string(kStoresBefore + death * kStride)});
      daemon_.start_again();
      ASSERT_TRUE(daemon_.wait_ready()) << daemon_.err();
      Bystanders others(daemon_.control_path());
      ASSERT_TRUE(eventually([&] { return daemon_.has_ended(); }));
      const auto died = Clock::now();
      tends_with_ = store_of_adoption;
      tend();
      std::this_thread::sleep_until(died + kAfter);
      const std::uint64_t answered = others.answered();
      ASSERT_TRUE(eventually([&] { return others.answered() > answered; }));
      others.stop();
      const auto add = [](std::vector<double>& all, const std::vector<double>& more) {
        all.insert(all.end(), more.begin(), more.end());
      };
      add(row_.others_before, others.waits(died - kBefore, died - kMargin));
      add(row_.others_after, others.waits(died, died + kAfter));
      EXPECT_EQ(broken_invariant(daemon_), "");
    }
  }

  // Once nobody is there. Takes all memory for a moment.
  std::uint64_t chunks_to_be_had() {
    KvWorker worker(daemon_.control_path());
    std::uint64_t chunks = 0;
    EXPECT_EQ(why(worker.open("all there is", 1)), "");
    while (worker.append("all there is", 16)) ++chunks;
    return chunks;
  }

  // What is published is there, whoever died: exactly so many tokens, every byte right.
  void expect_published(KvWorker& worker, const std::string& session, std::uint64_t epoch,
                        std::uint32_t tokens) {
    const auto view = insist(worker, [&]() -> std::expected<View, Refusal> {
      auto found = worker.client().resolve(SessionId::from(session).value(), Epoch{epoch},
                                           TokenCount{tokens});
      if (found) return std::move(*found);
      if (found.error().reason == MissReason::daemon_unavailable) {
        return std::unexpected(
            Refusal(Error{ErrorCode::daemon_unavailable, "resolve", session, "", 0}));
      }
      return std::unexpected(Refusal(found.error()));
    });
    if (!view) row_.tokens_lost += tokens;
    ASSERT_TRUE(view.has_value()) << view.error().message();
    row_.unpublished_seen += wrong_bytes(worker_recipe(), session, epoch, *view);
    EXPECT_EQ(row_.unpublished_seen, 0U);
  }

  // What ends a generation and whose answer was lost may have been done (a truncate, an append that
  // copies the tail): then the lease is asked for again, as the library's documentation says.
  template <class Ask>
  void insist_as_holder(KvWorker& worker, const std::string& session, Ask ask) {
    const auto outcome = insist(worker, ask);
    if (outcome) return;
    ASSERT_FALSE(outcome.error().is_miss()) << outcome.error().message();
    ASSERT_EQ(outcome.error().error().code, ErrorCode::lease_lost) << outcome.error().message();
    const std::uint64_t epoch = worker.context(session).epoch().value();
    ASSERT_EQ(why(insist(worker, [&] { return worker.open(session, epoch); })), "");
    ASSERT_EQ(why(insist(worker, ask)), "");
  }
  void append(KvWorker& worker, const std::string& session, std::uint32_t tokens) {
    insist_as_holder(worker, session, [&] { return worker.append(session, tokens); });
  }
  void truncate(KvWorker& worker, const std::string& session, std::uint32_t to) {
    insist_as_holder(worker, session,
                     [&] { return worker.context(session).truncate(TokenCount{to}); });
  }

  // All that changes tables: open, grants, tail copies, truncate, close, take-over, supersede,
  // release, eviction by cap and by need of memory.
  void live(KvWorker& worker) {
    const auto open = [&](const std::string& session, std::uint64_t epoch) {
      ASSERT_EQ(why(insist(worker, [&] { return worker.open(session, epoch); })), "");
    };
    open("a", 1);
    append(worker, "a", 40);
    expect_published(worker, "a", 1, 40);
    {
      // A pinned old generation, so that the tail is copied and a head is kept.
      const auto held =
          worker.client().resolve(SessionId::from("a").value(), Epoch{1}, TokenCount{40});
      truncate(worker, "a", 20);
      append(worker, "a", 9);
      if (held) {
        EXPECT_EQ(wrong_bytes(worker_recipe(), "a", 1, *held), 0U);
      }
    }
    expect_published(worker, "a", 1, 29);
    open("b", 1);
    append(worker, "b", 17);
    worker.drop("a");
    open("a", 1);
    append(worker, "a", 4);
    expect_published(worker, "a", 1, 33);
    open("b", 2);
    append(worker, "b", 3);
    expect_published(worker, "b", 2, 3);
    (void)insist(worker, [&] { return worker.context("b").release(); });
    worker.drop("b");
    expect_published(worker, "a", 1, 33);
    for (int other = 0; other < 5; ++other) open("other-" + std::to_string(other), 1);
  }
};

// Published tokens lost: 0. Contexts lost: 0. FR-052: also at each store of a shard's making, where
// the client that waits for it gets an answer from the next daemon.
TEST_F(DaemonDeaths, AtEachStoreOfAWorkersLifeLoseNothing) {
  row_ = {.number = 22,
          .crashed =
              "daemon killed at each store of a worker's life, in turn; the request that met "
              "it is answered"};
  ASSERT_TRUE(daemon_.wait_ready());
  // With a sanitizer a start takes long; every store is died at without one.
  const int stride = kIsSanitized ? 16 : 1;
  constexpr int kLooksForLeaks = 8;  // one in so many: until all clients are gone takes a tick
  int deaths = 0;
  for (int store = 1; store < kStoresMax; store += stride) {
    SCOPED_TRACE(store);
    daemon_.kill();
    daemon_.store().clear();
    daemon_.set_variables({"PLANTED_FAULT=die-at-store=" + std::to_string(store)});
    daemon_.start_again();
    ASSERT_TRUE(daemon_.wait_ready()) << daemon_.err();
    deaths_ = 0;
    {
      auto client = Client::attach({.socket_path = daemon_.control_path()}, worker_recipe());
      if (!client) {  // it died of the attach itself
        ASSERT_TRUE(eventually([&] { return daemon_.has_ended(); }));
        tend();
        client = Client::attach({.socket_path = daemon_.control_path()}, worker_recipe());
      }
      ASSERT_TRUE(client.has_value()) << client.error().message();
      KvWorker worker(std::move(*client));
      live(worker);
      if (HasFailure()) return;
      // It may die of its housekeeping, too, and while it is asked.
      ASSERT_TRUE(eventually([&] {
        tend();
        return shard_number("/counters/contexts_ended/lost-in-restart") == 0;
      }));
    }
    // At the end of the script always: what its clients leave behind is stored, too.
    if (store % kLooksForLeaks == 1 || deaths_ == 0) {
      ASSERT_TRUE(eventually([&] {
        tend();
        return shard_number("/clients") == 0 && shard_number("/account/kept_bytes") == 0;
      }));
      EXPECT_EQ(broken_invariant(daemon_), "");
      if (deaths_ > 0) row_.chunks_leaked += kChunks - chunks_to_be_had();
      ASSERT_EQ(row_.chunks_leaked, 0U);
    }
    deaths += deaths_;
    if (deaths_ == 0) {
      std::printf("%d stores, %d deaths\n", store - 1, deaths);
      EXPECT_GE(deaths, 60 / stride);
      row_.crashes = static_cast<std::uint32_t>(deaths);
      die_beside_others(3, std::nullopt);
      report(row_);
      return;
    }
    ASSERT_EQ(deaths_, 1);
  }
  FAIL() << "the script has no end";
}

// The next daemon dies in its turn, at each store of finishing what the first one left half done.
TEST_F(DaemonDeaths, AtEachStoreOfAnAdoptionLoseNothing) {
  row_ = {.number = 23, .crashed = "daemon killed at each store of its adoption, in turn"};
  ASSERT_TRUE(daemon_.wait_ready());
  const auto die_at = [&](int store) {
    daemon_.kill();
    daemon_.set_variables({"PLANTED_FAULT=die-at-store=" + std::to_string(store)});
    daemon_.start_again();
  };
  const int first_stride = kIsSanitized ? 150 : 25;
  std::uint32_t deaths = 0;
  for (int first = 20; first < kStoresMax; first += first_stride) {
    bool has_died_first = false;
    for (int second = 1; second < kStoresMax; ++second) {
      SCOPED_TRACE(std::to_string(first) + ", " + std::to_string(second));
      daemon_.store().clear();
      die_at(first);
      ASSERT_TRUE(daemon_.wait_ready()) << daemon_.err();
      auto client = Client::attach({.socket_path = daemon_.control_path()}, worker_recipe());
      ASSERT_TRUE(client.has_value()) << client.error().message();
      KvWorker worker(std::move(*client));
      tends_with_ = second;
      deaths_ = deaths_in_adoption_ = 0;
      live(worker);
      if (HasFailure()) return;
      has_died_first = deaths_ > 0;
      deaths += static_cast<std::uint32_t>(deaths_in_adoption_);
      if (deaths_in_adoption_ == 0) break;  // it has no such store
    }
    if (!has_died_first) break;
  }
  tends_with_.reset();
  std::printf("%u deaths in adoption\n", deaths);
  row_.crashes = deaths;
  EXPECT_GE(deaths, kIsSanitized ? 1U : 20U);
  die_beside_others(3, 5);
  report(row_);
}

}  // namespace
}  // namespace hotkv::testing
