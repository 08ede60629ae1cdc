// Everything at once: writers, readers, truncaters, releasers and superseders as processes, a
// budget that is too small, and kills of workers and of the daemon at any moment.

#include <gtest/gtest.h>

#include <array>
#include <atomic>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <nlohmann/json.hpp>
#include <optional>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include "tests/support/forked_child.hpp"
#include "tests/support/kv_worker.hpp"
#include "tests/support/seeded_random.hpp"
#include "tests/support/shared_memory_of.hpp"

namespace hotkv::testing {
namespace {

using Clock = std::chrono::steady_clock;

constexpr std::size_t kWorkers = 4;
constexpr std::size_t kSessions = 6;        // that only one worker writes, each
constexpr std::size_t kCommonSessions = 3;  // that all workers want

// In memory of all processes.
struct Figures {
  std::atomic<std::uint64_t> operations{0};
  std::atomic<std::uint64_t> refused{0};      // busy, over budget, daemon away: allowed
  std::atomic<std::uint64_t> views{0};        // pinned and looked at twice
  std::atomic<std::uint64_t> wrong_bytes{0};  // not those of (session, epoch, position)
  std::atomic<std::uint64_t> torn_views{0};   // right at first, and not a moment later
  std::atomic<std::uint64_t> lost{0};         // published, and neither there nor evicted
  std::atomic<std::uint64_t> unexplained{0};  // refusals that nothing here can cause
  std::atomic<std::uint64_t> comebacks{0};    // clients that were connected again
  std::atomic<bool> ending{false};
  // What each worker has published, stored after the publish and before whatever ends it.
  struct Known {
    std::atomic<std::uint64_t> epoch{0};
    std::atomic<std::uint32_t> tokens{0};
  };
  std::array<std::array<Known, kSessions>, kWorkers> known;
  std::array<char, 256> example{};  // of what was unexplained
};

std::string name_of(std::size_t worker, std::size_t session) {
  return "w" + std::to_string(worker) + "-s" + std::to_string(session);
}

class ChaosWorker {
 public:
  ChaosWorker(KvWorker worker, std::size_t index, std::uint32_t seed, Figures& figures)
      : worker_(std::move(worker)), index_(index), random_(seed), figures_(figures) {}

  void work() {
    for (std::size_t session = 0; session < kSessions; ++session) look_after_death(session);
    while (!figures_.ending) {
      if (!worker_.client().is_connected()) {
        (void)worker_.client().wait_connected(std::chrono::milliseconds(200));
        if (worker_.client().is_connected()) ++figures_.comebacks;
      }
      ++figures_.operations;
      switch (below(10)) {
        case 0:
        case 1:
        case 2: write(below(kSessions)); break;
        case 3: roll_back(below(kSessions)); break;
        case 4: end(below(kSessions)); break;
        case 5: want_common(below(kCommonSessions)); break;
        default: read(below(kWorkers), below(kSessions)); break;
      }
    }
  }

 private:
  [[nodiscard]] std::uint32_t below(std::uint32_t bound) {
    return std::uniform_int_distribution<std::uint32_t>(0, bound - 1)(random_);
  }
  [[nodiscard]] Figures::Known& known(std::size_t session) const {
    return figures_.known[index_][session];
  }

  // An earlier process of this worker may have been killed anywhere: at least what it noted is
  // there.
  void look_after_death(std::size_t session) {
    const std::uint64_t epoch = known(session).epoch;
    if (epoch == 0) return;
    const std::uint32_t tokens = known(session).tokens;
    const auto view = resolve(name_of(index_, session), epoch, 0, LengthMatch::any);
    if (view && view->length() < TokenCount{tokens}) {
      note_lost(name_of(index_, session), "shorter than before its worker died");
    }
    forget(session, epoch);
  }

  void forget(std::size_t session, std::uint64_t epoch) {
    known(session).tokens = 0;
    known(session).epoch = epoch + 1;
    worker_.drop(name_of(index_, session));
  }

  // A miss that the budget, a release or an outage explains is none of the chaos's business.
  std::optional<View> resolve(const std::string& session, std::uint64_t epoch, std::uint32_t tokens,
                              LengthMatch match, bool is_ones_own = true) {
    auto view = worker_.client().resolve(SessionId::from(session).value(), Epoch{epoch},
                                         TokenCount{tokens}, match);
    if (view) return std::move(*view);
    const MissReason reason = view.error().reason;
    const bool is_explained =
        reason == MissReason::evicted_lru || reason == MissReason::daemon_unavailable ||
        reason == MissReason::released || (!is_ones_own && reason != MissReason::lost_in_restart) ||
        (reason == MissReason::unknown_session && tokens == 0);
    if (!is_explained) note_lost(session, view.error().message());
    return std::nullopt;
  }

  void note_lost(const std::string& session, const std::string& how) {
    ++figures_.lost;
    note(session + ": " + how);
  }
  void note(const std::string& what) {
    what.copy(figures_.example.data(), figures_.example.size() - 1);
  }

  // Not there any more, or not to be had just now. Everything else would be a mistake.
  void note_refusal(std::size_t session, const Refusal& refusal) {
    ++figures_.refused;
    if (refusal.is_miss()) {
      if (refusal.miss().reason == MissReason::lost_in_restart) {
        note_lost(name_of(index_, session), refusal.message());
      }
      return forget(session, known(session).epoch);
    }
    switch (refusal.error().code) {
      case ErrorCode::daemon_unavailable:
      case ErrorCode::deadline_exceeded:
      case ErrorCode::budget_exceeded:
      case ErrorCode::too_many_waiting:
      case ErrorCode::memory_unavailable: return;
      // An answer was lost with the daemon, and what it would have told was done.
      case ErrorCode::lease_lost: worker_.drop(name_of(index_, session)); return;
      default: ++figures_.unexplained; note(name_of(index_, session) + ": " + refusal.message());
    }
  }

  [[nodiscard]] bool have(std::size_t session) {
    if (worker_.holds(name_of(index_, session))) return true;
    if (known(session).epoch == 0) known(session).epoch = 1;
    // An open makes what is not there, and would hide that it is lost.
    if (known(session).tokens != 0 && !is_there(session)) forget(session, known(session).epoch);
    const auto opened = worker_.open(name_of(index_, session), known(session).epoch);
    if (!opened) {
      note_refusal(session, opened.error());
      return false;
    }
    // Evicted since the look.
    const TokenCount length = worker_.context(name_of(index_, session)).length();
    if (length < TokenCount{known(session).tokens}) known(session).tokens = length.value();
    return true;
  }

  // With at least what is known of it; false where it was evicted, or cannot be looked at.
  bool is_there(std::size_t session) {
    const auto view = resolve(name_of(index_, session), known(session).epoch, 0, LengthMatch::any);
    if (view && view->length() < TokenCount{known(session).tokens}) {
      note_lost(name_of(index_, session), "shorter than published");
    }
    return view.has_value();
  }

  void write(std::size_t session) {
    if (!have(session)) return;
    const auto length = worker_.append(name_of(index_, session), 1 + below(40));
    if (!length) return note_refusal(session, length.error());
    known(session).tokens = length->value();
    check_known(session);
  }

  void roll_back(std::size_t session) {
    if (known(session).tokens == 0 || !have(session)) return;
    const std::uint32_t tokens = known(session).tokens;  // less, if it was evicted before that
    if (tokens == 0) return;
    const std::uint32_t to = below(tokens);
    known(session).tokens = to;  // from here on less may be there
    const auto done = worker_.context(name_of(index_, session)).truncate(TokenCount{to});
    if (!done) {
      note_refusal(session, done.error());
      return;
    }
    check_known(session);
  }

  void end(std::size_t session) {
    if (!have(session)) return;
    const std::uint64_t epoch = known(session).epoch;
    known(session).tokens = 0;
    switch (below(3)) {
      case 0:  // superseded by the next epoch
        known(session).epoch = epoch + 1;
        worker_.drop(name_of(index_, session));
        break;
      case 1: {
        known(session).epoch = epoch + 1;
        const auto released = worker_.context(name_of(index_, session)).release();
        worker_.drop(name_of(index_, session));
        if (!released && !released.error().is_miss()) note_refusal(session, released.error());
        break;
      }
      default:  // the lease is given back, the context stays
        worker_.drop(name_of(index_, session));
        break;
    }
  }

  // What this worker alone writes has at least what it knows: a rollback whose answer was lost may
  // not have been done.
  void check_known(std::size_t session) {
    auto view = resolve(name_of(index_, session), known(session).epoch, known(session).tokens,
                        LengthMatch::any);
    if (view && view->length() < TokenCount{known(session).tokens}) {
      note_lost(name_of(index_, session), "shorter than acknowledged");
    }
    look_twice(name_of(index_, session), known(session).epoch, std::move(view));
  }

  void read(std::size_t worker, std::size_t session) {
    const std::uint64_t epoch = figures_.known[worker][session].epoch;
    if (epoch == 0) return;
    look_twice(name_of(worker, session), epoch,
               resolve(name_of(worker, session), epoch, 0, LengthMatch::any, false));
  }

  void look_twice(const std::string& session, std::uint64_t epoch, std::optional<View> view) {
    if (!view) return;
    ++figures_.views;
    const std::size_t wrong = wrong_bytes(worker_recipe(), session, epoch, *view);
    figures_.wrong_bytes += wrong;
    if (below(4) == 0) std::this_thread::sleep_for(std::chrono::microseconds(below(3000)));
    if (wrong_bytes(worker_recipe(), session, epoch, *view) != wrong) ++figures_.torn_views;
  }

  // Leases that go from worker to worker, over deaths of both.
  void want_common(std::size_t session) {
    const std::string name = "common-" + std::to_string(session);
    if (!worker_.open(name, 1)) {
      ++figures_.refused;
      return;
    }
    if (worker_.context(name).length() > TokenCount{200}) {
      (void)worker_.context(name).truncate(TokenCount{below(100)});
    }
    if (worker_.append(name, 1 + below(20))) {
      look_twice(name, 1, resolve(name, 1, 0, LengthMatch::any, false));
    }
    worker_.drop(name);
  }

  KvWorker worker_;
  const std::size_t index_;
  std::mt19937 random_;
  Figures& figures_;
};

int run_worker(const std::string& path, std::size_t index, std::uint32_t seed, Figures& figures) {
  while (!figures.ending) {
    auto client =
        Client::attach({.socket_path = path, .deadline = std::chrono::seconds(2)}, worker_recipe());
    if (!client) {  // the daemon is away just now
      std::this_thread::sleep_for(std::chrono::milliseconds(5));
      continue;
    }
    ChaosWorker(KvWorker(std::move(*client)), index, seed, figures).work();
  }
  return 0;
}

class Chaos : public ::testing::Test {
 protected:
  static DaemonOptions options(std::string program) {
    // 64 chunks of 16 tokens, where the workers would want some 200.
    return {.flags = {"--max-bytes=256K", "--hugepages=off", "--chunk-tokens=16"},
            .program = std::move(program)};
  }

  void run(DaemonProcess& daemon, std::chrono::seconds duration) {
    std::mt19937 random(static_cast<std::uint32_t>(random_seed()));
    std::array<std::optional<ForkedChild>, kWorkers> workers;
    const auto start = [&](std::size_t index) {
      return ForkedChild([&, index, seed = static_cast<std::uint32_t>(random())] {
        return run_worker(daemon.control_path(), index, seed, *figures_);
      });
    };
    for (std::size_t index = 0; index < kWorkers; ++index) workers[index].emplace(start(index));
    const auto end = Clock::now() + duration;
    while (Clock::now() < end) {
      std::this_thread::sleep_for(std::chrono::milliseconds(random() % 120));
      if (random() % 3 != 0) {
        const std::size_t index = random() % kWorkers;
        workers[index]->kill_and_wait();
        ++worker_kills_;
        workers[index].emplace(start(index));
      } else {
        daemon.kill();
        ++daemon_kills_;
        // The count of failed adoptions is always kept; with three files more there is a shard.
        const int kept_shards = daemon.store().kept().size() > 1 ? 1 : 0;
        daemon.start_again();
        ASSERT_TRUE(daemon.wait_ready()) << daemon.err();
        ASSERT_EQ(admin_page(daemon, "/status").at("adopted_shards"), kept_shards);
        adoptions_ += kept_shards;
      }
      ASSERT_EQ(broken_invariant(daemon), "");
      const auto account = admin_page(daemon, "/status").at("account");
      ASSERT_LE(account.at("provisioned_bytes"), 256 * 1024);
    }
    figures_->ending = true;
    for (auto& worker : workers) EXPECT_EQ(worker->exit_code(), 0);
    print();
  }

  void print() const {
    std::printf(
        "operations %lu (%lu refused), views looked at twice %lu, worker kills %d, daemon kills "
        "%d, adoptions %d, comebacks %lu, wrong bytes %lu, torn views %lu, lost %lu, unexplained "
        "%lu\n",
        figures_->operations.load(), figures_->refused.load(), figures_->views.load(),
        worker_kills_, daemon_kills_, adoptions_, figures_->comebacks.load(),
        figures_->wrong_bytes.load(), figures_->torn_views.load(), figures_->lost.load(),
        figures_->unexplained.load());
  }

  SharedMemoryOf<Figures> figures_;
  int worker_kills_ = 0;
  int daemon_kills_ = 0;
  int adoptions_ = 0;
};

// HOTKV_CHAOS_SECONDS=600 by hand.
TEST_F(Chaos, LosesNothingAndTearsNothingWhoeverDiesWhen) {
  const char* const given = std::getenv("HOTKV_CHAOS_SECONDS");
  const std::chrono::seconds duration(given != nullptr ? std::atoi(given) : 30);
  DaemonProcess daemon(options("hotkvd"));
  ASSERT_TRUE(daemon.wait_ready()) << daemon.err();
  run(daemon, duration);
  if (HasFatalFailure()) return;
  EXPECT_EQ(figures_->wrong_bytes, 0U);
  EXPECT_EQ(figures_->torn_views, 0U);
  EXPECT_EQ(figures_->lost, 0U) << figures_->example.data();
  EXPECT_EQ(figures_->unexplained, 0U) << figures_->example.data();
  EXPECT_GT(figures_->views, 100U);
  EXPECT_GT(figures_->comebacks, 0U);
  EXPECT_GT(adoptions_, 0);
  // Nothing leaked: with all clients gone one context can have all of the budget but a chunk.
  ASSERT_TRUE(eventually([&] { return shard_status(daemon, "tiny").at("clients") == 0; }));
  ASSERT_TRUE(
      eventually([&] { return shard_status(daemon, "tiny").at("account").at("kept_bytes") == 0; }));
  KvWorker last(daemon.control_path());
  ASSERT_EQ(why(last.open("all", 1)), "");
  EXPECT_EQ(why(last.append("all", 64 * 16)), "");
  EXPECT_EQ(broken_invariant(daemon), "");
  EXPECT_EQ(daemon.stop(), 0) << daemon.err();
}

// The check can fail: a daemon that reuses chunks as if nobody had pinned them is found out.
TEST_F(Chaos, OfADaemonThatReusesWhatIsPinnedIsSeen) {
  DaemonOptions planted = options("hotkvd_faults");
  planted.variables = {"PLANTED_FAULT=ignore-pins"};
  DaemonProcess daemon(planted);
  ASSERT_TRUE(daemon.wait_ready()) << daemon.err();
  // Chance decides when; a minute is ten times what it takes.
  for (int round = 0; round < 20 && figures_->wrong_bytes + figures_->torn_views == 0; ++round) {
    figures_->ending = false;
    run(daemon, std::chrono::seconds(3));
    if (HasFatalFailure()) return;
  }
  EXPECT_GT(figures_->wrong_bytes + figures_->torn_views, 0U);
}

}  // namespace
}  // namespace hotkv::testing
