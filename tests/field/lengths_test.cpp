// What a length means: after every way to come back to a context, and while names are fought for.

#include <gtest/gtest.h>
#include <signal.h>

#include <array>
#include <atomic>
#include <chrono>
#include <random>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "tests/support/forked_child.hpp"
#include "tests/support/raw_client.hpp"
#include "tests/support/under_fire.hpp"

namespace hotkv::testing {
namespace {

class Lengths : public UnderFire {
 protected:
  // What the lease says, what memory shows and what can be read is one length.
  static void expect_usable(KvWorker& worker, std::uint32_t length) {
    const auto session = SessionId::from("s").value();
    EXPECT_EQ(worker.context("s").length(), TokenCount{length});
    const auto view = worker.client().resolve(session, Epoch{1}, TokenCount{length});
    ASSERT_TRUE(view.has_value()) << view.error().message();
    EXPECT_EQ(wrong_bytes(worker.client().recipe(), "s", 1, *view), 0U);
    EXPECT_EQ(worker.client().get(session, Epoch{1})->length(), TokenCount{length});
    const auto more = worker.client().resolve(session, Epoch{1}, TokenCount{length + 1});
    ASSERT_FALSE(more.has_value());
    EXPECT_EQ(more.error().reason, MissReason::seq_len_mismatch);
    EXPECT_EQ(more.error().known_length, TokenCount{length});
  }
};

// FR-110: whoever comes back to a context, after a close, a detach or a death in the middle of an
// append, gets the length that can be read, and goes on from there.
TEST_F(Lengths, WhatAReturningWorkerIsToldIsWhatItCanRead) {
  {
    KvWorker first(daemon_.control_path());
    ASSERT_TRUE(first.open("s", 1));
    ASSERT_TRUE(first.append("s", 20));
    ASSERT_TRUE(first.context("s").close());
    first.drop("s");
    ASSERT_TRUE(first.open("s", 1));
    expect_usable(first, 20);
  }
  std::uint32_t length = 20;
  for (const std::uint32_t unpublished : {1U, 12U, 100U}) {
    ForkedChild dies([&] {
      KvWorker worker(daemon_.control_path());
      if (!worker.open("s", 1) || !worker.append("s", 7)) return 1;
      auto writer = worker.context("s").append(TokenCount{unpublished});
      if (!writer) return 2;
      worker.fill("s", 1, *writer, 0, unpublished, 9);
      return ::raise(SIGKILL);
    });
    EXPECT_EQ(dies.exit_code(), -1);
    length += 7;
    KvWorker next(daemon_.control_path());
    ASSERT_TRUE(eventually([&] { return next.open("s", 1).has_value(); }));
    expect_usable(next, length);
    ASSERT_TRUE(next.append("s", 5));
    length += 5;
    expect_usable(next, length);
  }
}

// ---- names --------------------------------------------------------------------------------------

constexpr std::size_t kSessions = 4;
constexpr int kClients = 8;

// What several clients of one shard see of the same few names.
struct Fight {
  std::string control_path;
  std::array<std::atomic<int>, kSessions> holder{};
  // Of a context that has ended: its name has it no more.
  std::array<std::atomic<std::uint64_t>, kSessions> ended{};  // slot and generation
  std::atomic<std::uint64_t> opened = 0, stale_releases = 0;
  // None of these may happen.
  std::atomic<std::uint64_t> second_winners = 0, lost = 0, killed_by_old = 0, odd_answers = 0;
};

class Fighter {
 public:
  Fighter(Fight& fight, int number)
      : fight_(fight),
        number_(number),
        client_(fight.control_path),
        random_(static_cast<std::uint32_t>(number)) {
    client_.hello();
    client_.stay_alive(client_.attach(worker_recipe({0, 1}, "fight"), Access::write));
  }

  // So that what is held at the end is nobody's for those that go on.
  void leave() {
    for (std::size_t index = 0; index < kSessions; ++index) {
      if (generation_[index] != 0) give_back(index, "fight-" + std::to_string(index));
    }
  }
  void step() {
    const std::size_t index = random_() % kSessions;
    const std::string session = "fight-" + std::to_string(index);
    if (generation_[index] == 0) {
      random_() % 2 == 0 ? try_open(index, session) : release_what_ended(index, session);
    } else {
      use(index, session);
    }
  }

 private:
  static bool is(const protocol::OperationResult& result, protocol::Outcome outcome) {
    return result.outcome == static_cast<std::uint32_t>(outcome);
  }

  void try_open(std::size_t index, const std::string& session) {
    const auto opened = client_.open(session, 1);
    if (is(opened, protocol::Outcome::done)) {
      fight_.second_winners += fight_.holder[index].exchange(number_) != 0;
      ++fight_.opened;
      generation_[index] = opened.generation;
      slot_[index] = opened.slot;
    } else {
      fight_.odd_answers += opened.code != static_cast<std::uint32_t>(ErrorCode::session_busy);
    }
  }

  // The lease of a context lasts until its holder ends it.
  void use(std::size_t index, const std::string& session) {
    const std::uint32_t generation = generation_[index];
    switch (random_() % 4) {
      case 0: {
        fight_.holder[index] = 0;
        generation_[index] = 0;
        fight_.lost += !is(release(session, slot_[index], generation), protocol::Outcome::done);
        fight_.ended[index] = std::uint64_t{slot_[index]} << 32 | generation;
        break;
      }
      case 1: give_back(index, session); break;
      default: {
        const auto appended =
            client_.append(session, 1, generation, 1 + static_cast<std::uint32_t>(random_() % 40));
        fight_.lost += !is(appended, protocol::Outcome::done);
        generation_[index] = appended.generation;
      }
    }
  }

  void give_back(std::size_t index, const std::string& session) {
    fight_.holder[index] = 0;
    const std::uint32_t generation = std::exchange(generation_[index], 0);
    fight_.lost += !is(client_.close(session, 1, generation), protocol::Outcome::done);
  }

  void release_what_ended(std::size_t index, const std::string& session) {
    const std::uint64_t ended = fight_.ended[index];
    if (ended == 0) return;
    ++fight_.stale_releases;
    fight_.killed_by_old += is(release(session, static_cast<std::uint32_t>(ended >> 32),
                                       static_cast<std::uint32_t>(ended)),
                               protocol::Outcome::done);
  }

  protocol::OperationResult release(const std::string& session, std::uint32_t slot,
                                    std::uint32_t generation) {
    const auto results = client_.operate<protocol::ReleaseOperation>(
        protocol::Type::release, {{context_name(session, 1), generation, slot}});
    EXPECT_EQ(results.size(), 1U);
    return results.empty() ? protocol::OperationResult{} : results.front();
  }

  Fight& fight_;
  int number_;
  RawClient client_;
  std::mt19937 random_;
  std::array<std::uint32_t, kSessions> generation_{};  // of the leases it holds; 0: none
  std::array<std::uint32_t, kSessions> slot_{};
};

// FR-122: of two that create a name at once one wins, a lease ends by its holder alone, and the
// release of a context that has ended never ends the newer one of its name.
TEST_F(Lengths, ANameIsNeverEndedByWhoMeansTheOneBefore) {
  Fight fight{.control_path = daemon_.control_path()};
  std::vector<std::thread> clients;
  for (int number = 1; number <= kClients; ++number) {
    clients.emplace_back([&fight, number] {
      Fighter fighter(fight, number);
      const auto end = std::chrono::steady_clock::now() + std::chrono::seconds(2);
      while (std::chrono::steady_clock::now() < end) fighter.step();
      fighter.leave();
    });
  }
  for (std::thread& client : clients) client.join();
  EXPECT_EQ(fight.second_winners, 0U);
  EXPECT_EQ(fight.lost, 0U);
  EXPECT_EQ(fight.killed_by_old, 0U);
  EXPECT_EQ(fight.odd_answers, 0U);
  EXPECT_GT(fight.opened, 100U);
  EXPECT_GT(fight.stale_releases, 100U);
}

}  // namespace
}  // namespace hotkv::testing
