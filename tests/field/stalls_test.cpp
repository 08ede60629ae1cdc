// Protocol and stalls.

#include <gtest/gtest.h>
#include <signal.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <fstream>
#include <limits>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "tests/support/forked_child.hpp"
#include "tests/support/processor_time.hpp"
#include "tests/support/raw_client.hpp"
#include "tests/support/under_fire.hpp"

namespace hotkv::testing {
namespace {

using namespace protocol;
using Clock = std::chrono::steady_clock;

class Stalls : public UnderFire {
 protected:
  Stalls() { log_lines_per_second_max_ = 60; }  // a dozen kinds of refusals

  RawClient connected() {
    RawClient client(daemon_.control_path());
    EXPECT_EQ(client.hello().header.status, 0U);
    return client;
  }
  RawClient attached(Access access = Access::write) {
    return attached_client(daemon_.control_path(), access);
  }
};

Bytes hello_frame() {
  return make_frame<HelloRequest>(Type::hello, 1, {{kVersionMin, kVersionMax}});
}
Bytes attach_frame(const AttachRequest& request) {
  return make_frame<AttachRequest>(Type::attach, 2, {request});
}
AttachRequest attach_request(const Recipe& recipe = small_recipe()) {
  return {encode_recipe(recipe), static_cast<std::uint32_t>(Access::write), 0, 0};
}

// A right frame of each kind of operation on a context.
std::vector<Bytes> operation_frames(const Fingerprint& fingerprint, std::uint32_t generation) {
  const ContextName name = context_name("session", 1);
  OpenOperation open{name, {}};
  ExplainOperation explain{name, {}, 5, static_cast<std::uint32_t>(LengthMatch::exact)};
  std::ranges::copy(fingerprint, open.fingerprint);
  std::ranges::copy(fingerprint, explain.fingerprint);
  return {make_frame<OpenOperation>(Type::open, 3, {open}),
          make_frame<AppendOperation>(Type::append, 3, {{name, generation, 5}}),
          make_frame<TruncateOperation>(Type::truncate, 3, {{name, generation, 0, 0, 0}}),
          make_frame<CloseOperation>(Type::close, 3, {{name, generation, 0}}),
          make_frame<ReleaseOperation>(Type::release, 3, {{name, 0, 0}}),
          make_frame<ExplainOperation>(Type::explain, 3, {explain})};
}

// ---- stalls -------------------------------------------------------------------------------------

// The time below which nine of ten batches of ten round trips stayed.
Clock::duration ten_explains(RawClient& client) {
  std::vector<Clock::duration> times(100);
  for (Clock::duration& time : times) {
    const auto begin = Clock::now();
    for (int count = 0; count < 10; ++count) {
      EXPECT_NE(client.explain("nobody", 1, 0).outcome, 0xffff'ffffU);
    }
    time = Clock::now() - begin;
  }
  const auto place = times.begin() + 90;
  std::ranges::nth_element(times, place);
  return *place;
}

// Asks and never reads, as often as `goes_on()`; false once the daemon has hung up.
template <class GoesOn>
bool ask_and_never_read(RawClient& client, GoesOn goes_on) {
  const Bytes ask = operation_frames(client.fingerprint(), 0).back();
  while (goes_on()) {
    if (!client.send(ask)) return false;
  }
  return true;
}

// FR-079: clients that ask and never read, stopped or awake, slow nobody down; who goes on asking
// is disconnected, and whoever does the same next too, while the others and the admin socket are
// served.
TEST_F(Stalls, AClientThatStopsReadingStopsNobodyElse) {
  // Of these the kernel keeps some, so that the daemon has a queue; and it is not full yet.
  constexpr int kUnread = 300;
  RawClient other = attached();
  const auto disconnects = [&] {
    return status_number(daemon_, "/server/disconnects/not-reading");
  };
  auto beside_nobody = ten_explains(other);
  Turns turns;
  ForkedChild deaf([&, parent = ::getpid()] {
    const auto attach_again = [&] { return attached(Access::read); };
    RawClient first = attach_again();
    if (!ask_and_never_read(first, [sent = 0]() mutable { return sent++ < kUnread; })) return 1;
    turns.arrive_and_wait();  // stopped here, with answers unread
    const auto goes_on = [&] { return ::getppid() == parent; };
    for (RawClient next = std::move(first); goes_on(); next = attach_again()) {
      if (ask_and_never_read(next, goes_on)) return 2;
    }
    return 0;
  });
  ASSERT_TRUE(turns.wait_for_child());
  deaf.stop();
  EXPECT_EQ(disconnects(), 0U);
  const auto beside_the_stopped = ten_explains(other);
  EXPECT_FALSE(admin_get(daemon_, "/health").empty());
  EXPECT_EQ(disconnects(), 0U) << "it was not there any more";
  turns.go_on();
  ::kill(deaf.pid(), SIGCONT);
  EXPECT_TRUE(eventually([&] { return disconnects() > 0; }));
  const std::uint64_t before = disconnects();
  const auto beside_the_deaf = ten_explains(other);
  EXPECT_TRUE(eventually([&] { return disconnects() > before; })) << "it asks no more";
  EXPECT_FALSE(admin_get(daemon_, "/health").empty());
  deaf.kill_and_wait();
  EXPECT_TRUE(eventually([&] { return log_lines("client-not-reading") > 0; }));
  beside_nobody = std::max(beside_nobody, ten_explains(other));  // if it got busy meanwhile
  std::printf(
      "ten round trips: %.2f ms beside nobody, %.2f beside a stopped client, %.2f beside "
      "deaf ones\n",
      milliseconds_of(beside_nobody), milliseconds_of(beside_the_stopped),
      milliseconds_of(beside_the_deaf));
  const auto bound = 20 * beside_nobody + std::chrono::milliseconds(50);
  EXPECT_LT(beside_the_stopped, bound);
  EXPECT_LT(beside_the_deaf, bound);
}

// FR-088: clients that wait for the daemon sleep in the kernel; so does a daemon with idle clients.
TEST(Waiting, TakesHardlyAnyProcessorTimeOnEitherSide) {
  DaemonProcess daemon({.flags = {"--max-bytes=16M", "--hugepages=off"}});
  ASSERT_TRUE(daemon.wait_ready()) << daemon.err();
  constexpr auto kWait = std::chrono::milliseconds(600);
  const auto own_time = [] {
    rusage usage{};
    ::getrusage(RUSAGE_SELF, &usage);
    return std::chrono::seconds(usage.ru_utime.tv_sec + usage.ru_stime.tv_sec) +
           std::chrono::microseconds(usage.ru_utime.tv_usec + usage.ru_stime.tv_usec);
  };
  std::vector<std::unique_ptr<KvWorker>> workers;
  for (int count = 0; count < 32; ++count) {
    workers.push_back(std::make_unique<KvWorker>(daemon.control_path()));
  }
  const auto idle_begin = processor_time(daemon.pid());
  ASSERT_GT(idle_begin.count(), 0);
  std::this_thread::sleep_for(kWait);
  EXPECT_LT(processor_time(daemon.pid()) - idle_begin, kWait / 10);

  daemon.signal(SIGSTOP);
  std::vector<std::thread> waiting;
  std::atomic<int> told = 0;
  for (const auto& worker : workers) {
    waiting.emplace_back([&] {
      const auto miss = worker->client().get(SessionId::from("nobody").value(), Epoch{1});
      told += !miss && miss.error().reason == MissReason::unknown_session;
    });
  }
  std::this_thread::sleep_for(kWait / 4);  // until they wait
  const auto begin = own_time();
  std::this_thread::sleep_for(kWait);
  EXPECT_LT(own_time() - begin, kWait / 10);
  daemon.signal(SIGCONT);
  for (std::thread& thread : waiting) thread.join();
  EXPECT_EQ(told, 32);
  workers.clear();
  EXPECT_EQ(daemon.stop(), 0);
}

// ---- clients that go away -----------------------------------------------------------------------

// FR-080: clients that are gone before their answer comes, after every kind of request, with and
// without unread replies, and with descriptors on their way.
TEST_F(Stalls, ClientsThatLeaveBeforeTheirAnswerAreNoEvent) {
  const Fingerprint fingerprint = small_recipe().fingerprint();
  std::vector<Bytes> last_words = operation_frames(fingerprint, 1);
  last_words.push_back({});
  last_words.push_back(Bytes(7));
  for (int round = 0; round < 2'000; ++round) {
    RawClient client(daemon_.control_path());
    client.send(hello_frame());
    client.send(attach_frame(attach_request()));
    if (round % 3 == 0) (void)client.receive();
    client.send(last_words[static_cast<std::size_t>(round) % last_words.size()]);
    if (round % 5 == 0) ::shutdown(client.fd(), SHUT_RD);
  }
  for (int round = 0; round < 8'000; ++round) {
    RawClient client(daemon_.control_path());
    client.send(round % 2 == 0 ? hello_frame() : last_words[round / 2 % last_words.size()]);
  }
  for (int round = 0; round < 200; ++round) {
    const UniqueFd admin(::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0));
    const auto address = socket_address(daemon_.admin_path());
    ASSERT_EQ(::connect(admin.get(), reinterpret_cast<const sockaddr*>(&*address), sizeof *address),
              0);
    constexpr std::string_view kAsk = "GET /status HTTP/1.1\r\nHost: x\r\n\r\n";
    ASSERT_EQ(::send(admin.get(), kAsk.data(), kAsk.size(), MSG_NOSIGNAL),
              static_cast<ssize_t>(kAsk.size()));
  }
  EXPECT_TRUE(eventually([&] { return status_number(daemon_, "/server/connections") == 1; }));
  EXPECT_GE(status_number(daemon_, "/server/disconnects/hung-up"), 10'000U);
  EXPECT_EQ(status_number(daemon_, "/server/disconnects/system-error"), 0U);
}

void note_signal(int) {
  constexpr std::string_view kText = "a signal came\n";
  (void)!::write(STDERR_FILENO, kText.data(), kText.size());
  ::_exit(88);
}

// FR-080: the library neither needs SIGPIPE to be ignored nor changes what the program does with
// it.
TEST(HostProgram, KeepsItsSignalsWhenTheDaemonGoesAway) {
  DaemonProcess daemon({.flags = {"--max-bytes=16M", "--hugepages=off"}});
  ASSERT_TRUE(daemon.wait_ready()) << daemon.err();
  ForkedChild program([&] {
    std::vector<struct sigaction> before(65);
    std::vector<struct sigaction> after(65);
    ::signal(SIGPIPE, note_signal);
    for (int number = 1; number < 65; ++number) ::sigaction(number, nullptr, &before[number]);
    sigset_t mask_before;
    sigset_t mask_after;
    ::pthread_sigmask(SIG_SETMASK, nullptr, &mask_before);
    {
      KvWorker worker(daemon.control_path());
      if (!worker.open("s", 1)) return 1;
      ::kill(daemon.pid(), SIGKILL);
      for (int count = 0; count < 1000; ++count) {
        if (worker.client().get(SessionId::from("s").value(), Epoch{1}) && count == 999) return 2;
        (void)worker.context("s").append(TokenCount{2000});
      }
      if (worker.client().is_connected()) return 3;
    }
    for (int number = 1; number < 65; ++number) ::sigaction(number, nullptr, &after[number]);
    ::pthread_sigmask(SIG_SETMASK, nullptr, &mask_after);
    for (int number = 1; number < 65; ++number) {
      if (before[number].sa_handler != after[number].sa_handler) return 4;
      if (::sigismember(&mask_before, number) != ::sigismember(&mask_after, number)) return 5;
    }
    return 0;
  });
  EXPECT_EQ(program.exit_code(), 0) << "the number of the check that failed";
}

// ---- numbers ------------------------------------------------------------------------------------

// Each number of a frame, one at a time, replaced by each wild value: fields of four bytes at every
// fourth place, of eight at every eighth.
template <class Use>
void with_every_wild_field(const Bytes& frame, Use use) {
  constexpr std::array<std::uint32_t, 8> kWild4{0,           1,           0x7fff'ffff, 0x8000'0000,
                                                0x8000'0001, 0xffff'fffe, 0xffff'ffff, 0x0001'0000};
  constexpr std::array<std::uint64_t, 8> kWild8{std::uint64_t{1} << 31,
                                                std::uint64_t{1} << 32,
                                                (std::uint64_t{1} << 32) + 1,
                                                std::uint64_t{1} << 47,
                                                std::uint64_t{1} << 62,
                                                std::uint64_t{1} << 63,
                                                std::numeric_limits<std::uint64_t>::max() - 1,
                                                std::numeric_limits<std::uint64_t>::max()};
  const auto replace = [&]<class Number>(std::size_t at, Number value) {
    Bytes changed = frame;
    std::memcpy(changed.data() + at, &value, sizeof value);
    use(changed, at);
  };
  for (std::size_t at = 0; at + 4 <= frame.size(); at += 4) {
    for (const std::uint32_t value : kWild4) replace(at, value);
  }
  for (std::size_t at = 0; at + 8 <= frame.size(); at += 8) {
    for (const std::uint64_t value : kWild8) replace(at, value);
  }
}

// FR-083: every number of every operation, header and body, at its ends and where sums and products
// wrap: always an answer, never the end of the connection.
TEST_F(Stalls, EveryNumberOfAnOperationMayBeWild) {
  RawClient client = attached();
  std::size_t sent = 0;
  std::size_t answered = 0;
  const std::uint32_t generation = client.open("session", 1).generation;
  for (const Bytes& frame : operation_frames(client.fingerprint(), generation)) {
    with_every_wild_field(frame, [&](const Bytes& wild, std::size_t at) {
      ASSERT_TRUE(client.send(wild));
      ++sent;
      const auto reply = client.receive();
      ASSERT_TRUE(reply.has_value()) << "at byte " << at;
      answered += reply->header.status != 0 || reply->results().size() == 1;
    });
    (void)client.open("session", 1);  // should it have been released
  }
  EXPECT_GT(sent, 3'000U);
  EXPECT_EQ(answered, sent);
  EXPECT_EQ(client.hello().header.status, static_cast<std::uint32_t>(ErrorCode::protocol_error));
}

// FR-083: the same of what comes before a client is attached, each on a connection of its own.
TEST_F(Stalls, EveryNumberOfAnAttachmentMayBeWild) {
  const auto answers = [&](RawClient& client, const Bytes& wild, std::size_t at) {
    EXPECT_TRUE(client.send(wild));
    EXPECT_TRUE(client.receive().has_value()) << "at byte " << at;
  };
  with_every_wild_field(hello_frame(), [&](const Bytes& wild, std::size_t at) {
    RawClient client(daemon_.control_path());
    answers(client, wild, at);
  });
  with_every_wild_field(attach_frame(attach_request()), [&](const Bytes& wild, std::size_t at) {
    RawClient client = connected();
    answers(client, wild, at);
  });
}

// FR-083: recipes whose sizes, multiplied out, wrap to something small.
TEST_F(Stalls, RecipesWhoseSizesWrapAreRefused) {
  constexpr std::array<std::uint32_t, 4> kFactors{1U << 16, 1U << 20, 1U << 31, 0xffff'ffff};
  for (const std::uint32_t heads : kFactors) {
    for (const std::uint32_t dim : kFactors) {
      for (const std::uint32_t last_layer : {0U, 0xffff'fffeU, 0xffff'ffffU}) {
        AttachRequest request = attach_request();
        request.recipe.kv_heads = heads;
        request.recipe.key_dim = request.recipe.value_dim = dim;
        request.recipe.last_layer = last_layer;
        RawClient client = connected();
        const RawReply reply = client.ask(attach_frame(request));
        ASSERT_EQ(reply.header.type, static_cast<std::uint16_t>(Type::attach));
        EXPECT_NE(reply.header.status, 0U) << heads << ' ' << dim << ' ' << last_layer;
        EXPECT_FALSE(reply.text.empty());
      }
    }
  }
}

}  // namespace
}  // namespace hotkv::testing
