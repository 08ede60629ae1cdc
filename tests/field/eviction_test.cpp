// Eviction against readers.

#include <gtest/gtest.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <chrono>
#include <functional>
#include <memory>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include "tests/support/raw_client.hpp"
#include "tests/support/small_daemon.hpp"

namespace hotkv::testing {
namespace {

using Clock = std::chrono::steady_clock;
using std::chrono::milliseconds;

// Which epoch of each session is the newest, for readers in other processes.
constexpr std::uint32_t kSessions = 16;
constexpr std::uint32_t kSeldomRead = 4;  // the first few are left alone until they expire
constexpr std::uint32_t kVersions = 4;    // of the bytes at one position
constexpr unsigned kReaders = 4;
constexpr std::uint64_t kViewsMin = 100;  // of each reader
struct Board {
  std::array<std::atomic<std::uint64_t>, kSessions> epochs{};
  std::array<std::atomic<std::uint64_t>, kReaders> views{};
  std::atomic<bool> ending = false;
};
std::string name_of(std::uint32_t session) {
  return "s" + std::to_string(session);
}

// A board that forked children share.
class SharedBoard {
 public:
  SharedBoard()
      : memory_(::mmap(nullptr, sizeof(Board), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS,
                       -1, 0)),
        board_(new (memory_) Board) {}
  ~SharedBoard() { ::munmap(memory_, sizeof(Board)); }
  SharedBoard(const SharedBoard&) = delete;
  SharedBoard& operator=(const SharedBoard&) = delete;
  Board* operator->() const { return board_; }

 private:
  void* memory_;
  Board* board_;
};

// Which version the bytes at each position are, by the keys of the first layer; kVersions where
// they are none.
std::vector<std::uint32_t> versions_seen(const Recipe& recipe, const std::string& session,
                                         std::uint64_t epoch, const View& view) {
  std::vector<std::uint32_t> versions;
  for (std::size_t piece = 0; piece < view.piece_count(); ++piece) {
    for (std::uint32_t i = 0; i < view.piece_tokens(piece).value(); ++i) {
      const auto row =
          view.keys(0, piece).subspan(i * recipe.key_row_bytes(), recipe.key_row_bytes());
      const auto position = static_cast<std::uint32_t>(versions.size());
      std::uint32_t version = 0;
      while (version < kVersions && bench::wrong_bytes(row, {session, epoch, position, 0,
                                                             bench::Half::keys, version}) != 0) {
        ++version;
      }
      versions.push_back(version);
    }
  }
  return versions;
}

// Looks at sessions at random until the board says so or its parent is gone, each view twice with a
// pause between. Exit code 0: it saw not one wrong byte.
int read_and_check(const std::string& control_path, const SharedBoard& board, unsigned number_of,
                   pid_t parent) {
  KvWorker reader(control_path, worker_recipe(), Access::read);
  std::mt19937 random(number_of);
  while (!board->ending && ::getppid() == parent) {
    const bool is_seldom_read = random() % 500 == 0;
    const auto number = static_cast<std::uint32_t>(
        is_seldom_read ? random() % kSeldomRead
                       : kSeldomRead + random() % (kSessions - kSeldomRead));
    const std::string session = name_of(number);
    const std::uint64_t epoch = board->epochs[number];
    const auto view = reader.client().get(session_id(session), Epoch{epoch});
    if (!view) continue;
    const auto versions = versions_seen(reader.client().recipe(), session, epoch, *view);
    if (wrong_bytes(reader.client().recipe(), session, epoch, *view, versions) != 0) return 1;
    std::this_thread::sleep_for(std::chrono::microseconds(200));
    if (wrong_bytes(reader.client().recipe(), session, epoch, *view, versions) != 0) return 2;
    ++board->views[number_of];
  }
  return 0;
}

// Does at random whatever ends a context or a part of one. What others have ended is begun anew.
class Churn {
 public:
  Churn(KvWorker& worker, const SharedBoard& board) : worker_(worker), board_(board) {}

  void step() {
    const auto number = static_cast<std::uint32_t>(random_() % kSessions);
    const std::string session = name_of(number);
    if (!worker_.holds(session)) return begin(number);
    if (number < kSeldomRead && random_() % 100 != 0) return;
    Context& context = worker_.context(session);
    const std::uint32_t length = context.length().value();
    switch (random_() % 20) {
      case 0: (void)context.release(); return worker_.drop(session);
      case 1: ++board_->epochs[number]; return begin(number);  // supersedes
      case 2:                                                  // beyond the cap of sessions
        return (void)worker_.open("one more " + std::to_string(++others_), 1);
      case 3:
      case 4:
      case 5:
        (void)context.truncate(TokenCount{static_cast<std::uint32_t>(random_() % (length + 1))});
        break;
      default:
        if (length > 250) {
          (void)context.truncate(TokenCount{0});
        } else {
          (void)worker_.append(session, 1 + static_cast<std::uint32_t>(random_() % 60),
                               static_cast<std::uint32_t>(random_() % kVersions));
        }
    }
    if (!worker_.client().get(context.session(), context.epoch())) worker_.drop(session);
  }

 private:
  void begin(std::uint32_t number) {
    worker_.drop(name_of(number));
    if (board_->epochs[number] == 0) board_->epochs[number] = 1;
    (void)worker_.open(name_of(number), board_->epochs[number]);
    if (worker_.holds(name_of(number))) (void)worker_.append(name_of(number), 20);
  }

  KvWorker& worker_;
  const SharedBoard& board_;
  std::mt19937 random_{7};
  int others_ = 0;
};

class EvictionOfEveryKind : public SmallDaemon {
 protected:
  EvictionOfEveryKind()
      : SmallDaemon({"--max-bytes=384K", "--session-cap=24", "--default-ttl=100ms"}) {}
};

// FR-016: readers in processes of their own see no wrong byte while contexts end in every way there
// is: least recently used, unused for too long, released, superseded, over the cap, truncated.
TEST_F(EvictionOfEveryKind, FourReadersNeverSeeAWrongByte) {
  constexpr std::chrono::seconds kAtLeast{2};
  constexpr std::chrono::seconds kAtMost{60};
  const SharedBoard board;
  std::vector<std::unique_ptr<ForkedChild>> readers;
  for (unsigned i = 0; i < kReaders; ++i) {
    readers.push_back(std::make_unique<ForkedChild>([&, i, parent = ::getpid()] {
      return read_and_check(daemon_.control_path(), board, i, parent);
    }));
  }
  const auto ended = [&](const std::string& way) {
    return shard_number("/counters/contexts_ended/" + way);
  };
  const auto is_enough = [&] {
    return std::ranges::all_of(board->views, [](const auto& views) { return views > kViewsMin; }) &&
           shard_number("/counters/truncates") > 100;
  };
  const auto begin = Clock::now();
  {
    KvWorker worker(daemon_.control_path());
    Churn churn(worker, board);
    do {
      for (const auto end = Clock::now() + milliseconds(200); Clock::now() < end;) churn.step();
    } while (Clock::now() < begin + kAtLeast || (!is_enough() && Clock::now() < begin + kAtMost));
    // Here, too, a tick that expires what was left alone.
    EXPECT_TRUE(eventually([&] { return ended("evicted-ttl") > 0; }));
  }
  board->ending = true;
  for (const auto& reader : readers) EXPECT_EQ(reader->exit_code(), 0);
  for (const auto& views : board->views) EXPECT_GT(views, kViewsMin);
  for (const char* way : {"evicted-lru", "evicted-ttl", "released", "superseded-epoch"}) {
    EXPECT_GT(ended(way), 0U) << way;
  }
  EXPECT_GT(shard_number("/counters/truncates"), 100U);
}

class Eviction : public SmallDaemon {
 protected:
  explicit Eviction(const std::vector<std::string>& flags = {}) : SmallDaemon(flags) {}
};

// What a client has of a context that ends.
struct Held {
  KvWorker& worker;
  std::string session;
  std::uint32_t length;
  [[nodiscard]] Client& client() const { return worker.client(); }
  [[nodiscard]] Context& context() const { return worker.context(session); }
};
// A public call that would yield bytes, and what it says instead: the reason of a miss, or a
// refusal's message. Nothing where it yields them.
struct Call {
  const char* name;
  std::function<std::string(const Held&)> run;
};
std::string reason(const std::expected<View, CacheMiss>& outcome) {
  return outcome ? "" : std::string(to_string(outcome.error().reason));
}
template <class T>
std::string reason(const std::expected<T, Refusal>& outcome) {
  if (outcome || !outcome.error().is_miss()) return why(outcome);
  return std::string(to_string(outcome.error().miss().reason));
}
std::vector<Call> calls_of_readers() {
  const auto looks = [](LengthMatch match) {
    return [match](const Held& held) {
      return reason(held.client().resolve(session_id(held.session), Epoch{1},
                                          TokenCount{held.length}, match));
    };
  };
  return {{"resolve", looks(LengthMatch::exact)},
          {"resolve at least", looks(LengthMatch::at_least)},
          {"resolve any", looks(LengthMatch::any)},
          {"get",
           [](const Held& held) {
             return reason(held.client().get(session_id(held.session), Epoch{1}));
           }},
          {"resolve_as", [](const Held& held) {
             return reason(held.client().resolve_as(worker_recipe(), session_id(held.session),
                                                    Epoch{1}, TokenCount{held.length}));
           }}};
}
std::vector<Call> calls_of_the_holder() {
  std::vector<Call> calls = calls_of_readers();
  calls.push_back({"append within the grant",
                   [](const Held& held) { return reason(held.context().append(TokenCount{1})); }});
  calls.push_back({"append beyond the grant",
                   [](const Held& held) { return reason(held.context().append(TokenCount{40})); }});
  calls.push_back(
      {"reserve", [](const Held& held) { return reason(held.context().reserve(TokenCount{40})); }});
  calls.push_back({"append of a batch", [](const Held& held) {
                     const AppendRequest request{&held.context(), TokenCount{1}};
                     auto writers = held.client().append(std::span(&request, 1));
                     return reason(writers.at(0));
                   }});
  calls.push_back({"truncate", [](const Held& held) {
                     return reason(held.context().truncate(TokenCount{1}));
                   }});
  return calls;
}

// A context of which its holder has everything at hand.
void hold_and_cache(const Held& held) {
  ASSERT_TRUE(held.worker.open(held.session, 1));
  ASSERT_TRUE(held.worker.append(held.session, held.length));
  ASSERT_TRUE(held.client().get(session_id(held.session), Epoch{1}));
}

// FR-019: whether a context was released, superseded or evicted for its memory, and whichever
// public call asks for its bytes, first time or with everything cached, each says the same reason
// and none yields a byte.
TEST_F(Eviction, EveryCallThatYieldsBytesSaysTheSameOnceTheContextHasEnded) {
  KvWorker holder(daemon_.control_path());
  KvWorker other(daemon_.control_path());
  KvWorker fresh(daemon_.control_path(), worker_recipe(), Access::read);
  struct Ending {
    MissReason reason;
    std::function<void(const std::string&)> end;
  };
  const std::vector<Ending> endings{
      {MissReason::released,
       [&](const std::string& session) {
         ASSERT_TRUE(other.client().release(session_id(session), Epoch{1}));
       }},
      {MissReason::superseded_epoch,
       [&](const std::string& session) { ASSERT_TRUE(other.open(session, 2)); }},
      {MissReason::evicted_lru,
       [&](const std::string&) {
         ASSERT_EQ(whole_budget_refusal(other), "");
         ASSERT_TRUE(other.context("whole budget").release());
       }},
  };
  constexpr std::uint32_t kLength = 20;
  for (const Ending& ending : endings) {
    for (const Call& call : calls_of_the_holder()) {
      const std::string reason(to_string(ending.reason));
      SCOPED_TRACE(std::string(call.name) + ", " + reason);
      const Held held{holder, call.name + reason, kLength};
      ASSERT_NO_FATAL_FAILURE(hold_and_cache(held));
      EXPECT_EQ(call.run(held), "");
      ending.end(held.session);
      EXPECT_EQ(call.run(held), reason);
      for (const Call& look : calls_of_readers()) {
        EXPECT_EQ(look.run({fresh, held.session, kLength}), reason) << look.name;
      }
      holder.drop(held.session);
      other.drop(held.session);
    }
  }
}

// FR-019: nor is what is cached shown once the daemon is dead, which then ends no context any more.
TEST(EvictionByADeadDaemon, IsNotToldFromLifeSoNothingIsShown) {
  DaemonProcess daemon({.flags = {"--max-bytes=256K", "--hugepages=off", "--chunk-tokens=16"}});
  ASSERT_TRUE(daemon.wait_ready()) << daemon.err();
  KvWorker holder(daemon.control_path());
  ASSERT_TRUE(holder.open("last", 1));
  ASSERT_TRUE(holder.append("last", 20));
  ASSERT_TRUE(holder.client().get(session_id("last"), Epoch{1}));
  daemon.kill();
  ASSERT_TRUE(eventually([&] { return !holder.client().is_connected(); }));
  for (const Call& look : calls_of_readers()) {
    EXPECT_EQ(look.run({holder, "last", 20}), to_string(MissReason::daemon_unavailable))
        << look.name;
  }
}

class EvictionByAge : public Eviction {
 protected:
  EvictionByAge() : Eviction({"--default-ttl=1s"}) {}
};

// FR-019: the same of contexts that nobody used for too long.
TEST_F(EvictionByAge, EveryCallThatYieldsBytesSaysSo) {
  constexpr std::uint32_t kLength = 20;
  KvWorker holder(daemon_.control_path());
  KvWorker fresh(daemon_.control_path(), worker_recipe(), Access::read);
  for (const Call& call : calls_of_the_holder()) {
    const Held held{holder, call.name, kLength};
    ASSERT_NO_FATAL_FAILURE(hold_and_cache(held));
    EXPECT_EQ(call.run(held), "") << call.name;
  }
  ASSERT_TRUE(eventually([&] { return shard_number("/contexts") == 0; }));
  const std::string reason(to_string(MissReason::evicted_ttl));
  for (const Call& call : calls_of_the_holder()) {
    EXPECT_EQ(call.run({holder, call.name, kLength}), reason) << call.name;
    for (const Call& look : calls_of_readers()) {
      EXPECT_EQ(look.run({fresh, call.name, kLength}), reason) << call.name << ", " << look.name;
    }
  }
}

// FR-022: sessions expire on time and can be evicted, however often people, scrapers and probes
// that miss look at them.
TEST_F(EvictionByAge, LookingKeepsNothingAlive) {
  KvWorker writer(daemon_.control_path());
  KvWorker prober(daemon_.control_path(), worker_recipe(), Access::read);
  constexpr int kIdle = 32;
  const auto session = [](int i) { return "idle" + std::to_string(i); };
  for (int i = 0; i < kIdle; ++i) {
    ASSERT_TRUE(writer.open(session(i), 1));
    ASSERT_TRUE(writer.append(session(i), 2 * kChunkTokens));
  }
  const auto look = [&] {
    for (const char* page : {"/status", "/contexts", "/verify", "/metrics"}) {
      (void)admin_get(daemon_, page);
    }
    for (int i = 0; i < kIdle; ++i) {
      (void)admin_get(daemon_, "/why?session=" + session(i));
      (void)prober.client().resolve(session_id(session(i)), Epoch{1}, TokenCount{1});
    }
  };
  // Memory that is needed is there although everything was looked at this very moment.
  look();
  ASSERT_TRUE(writer.open("new", 1));
  const auto granted = writer.append("new", 4 * kChunkTokens);
  EXPECT_TRUE(granted.has_value()) << why(granted);
  EXPECT_EQ(shard_number("/counters/evictions_in_vain"), 0U);
  // A second to live, a tick each second, and generous time for a busy machine.
  EXPECT_TRUE(eventually([&] {
    look();
    return shard_number("/contexts") == 0;
  }));
  const auto evicted = shard_number("/counters/contexts_ended/evicted-lru");
  EXPECT_LE(evicted, 2U);  // what the 4 chunks take, if nothing has expired before
  EXPECT_EQ(shard_number("/counters/contexts_ended/evicted-ttl"), kIdle + 1U - evicted);
}

// Every public call at random, some refused, with whatever they give held for a while.
class Soak {
 public:
  Soak(KvWorker& worker, unsigned seed) : worker_(worker), random_(seed) {}

  void step() {
    const std::string session = name_of(pick(kSessions));
    const Epoch epoch{1 + pick(3)};
    Client& client = worker_.client();
    const std::array keys{ContextKey{session_id(session), epoch},
                          ContextKey{session_id(name_of(pick(kSessions))), epoch}};
    switch (pick(13)) {
      case 0: return keep_all(contexts_, client.open(keys));
      case 1: return keep(contexts_, client.open(session_id(session), epoch));
      case 2: return keep(views_, client.get(session_id(session), epoch));
      case 3:
        return keep(views_, client.resolve(session_id(session), epoch, TokenCount{pick(60)},
                                           LengthMatch::at_least));
      case 4:
        return keep(views_, client.resolve_as(client.recipe(), session_id(session), epoch,
                                              TokenCount{pick(60)}));
      case 5: return (void)client.release(keys);
      case 6: return (void)client.release(session_id(session), epoch);
      case 7: return drop_one(contexts_);
      case 8: return publish_one();
      default: return with_a_context();
    }
  }

 private:
  std::uint32_t pick(std::size_t below) { return static_cast<std::uint32_t>(random_() % below); }
  template <class T>
  void drop_one(std::vector<T>& held) {
    if (!held.empty()) held.erase(held.begin() + pick(held.size()));
  }
  template <class T, class Outcome>
  void keep(std::vector<T>& held, Outcome outcome) {
    if (outcome) held.push_back(std::move(*outcome));
    while (held.size() > 12) drop_one(held);
  }
  template <class T, class Outcomes>
  void keep_all(std::vector<T>& held, Outcomes outcomes) {
    for (auto& outcome : outcomes) keep(held, std::move(outcome));
  }
  void publish_one() {
    if (writers_.empty()) return;
    Writer& writer = writers_.at(pick(writers_.size()));
    (void)writer.publish(TokenCount{pick(writer.size().value() + 1)});
    if (pick(2) == 0) drop_one(writers_);
  }
  void with_a_context() {
    if (contexts_.empty()) return;
    Context& context = contexts_.at(pick(contexts_.size()));
    Context& second = contexts_.at(pick(contexts_.size()));
    const TokenCount to{pick(context.length().value() + 2)};
    const std::array appends{AppendRequest{&context, TokenCount{pick(30)}},
                             AppendRequest{&second, TokenCount{pick(30)}}};
    switch (pick(8)) {
      case 0: return (void)context.truncate(to);
      case 1: {
        const std::array truncates{TruncateRequest{&context, to}, TruncateRequest{&second, to}};
        return (void)worker_.client().truncate(truncates);
      }
      case 2: return keep_all(writers_, worker_.client().append(appends));
      case 3: return (void)context.reserve(TokenCount{pick(100)});
      case 4: return (void)context.close();
      case 5: return (void)context.release();
      default: return keep(writers_, context.append(TokenCount{1 + pick(40)}));
    }
  }

  KvWorker& worker_;
  std::mt19937 random_;
  std::vector<Context> contexts_;
  std::vector<View> views_;
  std::vector<Writer> writers_;
};

// FR-023: after a soak of every public call nothing is held that nobody drops.
TEST_F(Eviction, EverythingCanGoAfterASoakOfEveryCall) {
  {
    KvWorker one(daemon_.control_path());
    KvWorker two(daemon_.control_path());
    Soak soak_of_one(one, 1);
    Soak soak_of_two(two, 2);
    for (int i = 0; i < 10'000; ++i) {
      soak_of_one.step();
      soak_of_two.step();
    }
  }
  EXPECT_TRUE(eventually([&] { return shard_number("/clients") == 0; }));
  EXPECT_GT(shard_number("/counters/appends"), 300U);
  EXPECT_GT(shard_number("/counters/truncates"), 20U);
  EXPECT_GT(shard_number("/counters/releases"), 100U);
  EXPECT_EQ(pinned_contexts(), 0U);
  EXPECT_EQ(leased_contexts(), 0U);
  EXPECT_EQ(shard_number("/kept_heads"), 0U);
  KvWorker next(daemon_.control_path());
  EXPECT_EQ(whole_budget_refusal(next), "");
}

}  // namespace
}  // namespace hotkv::testing
