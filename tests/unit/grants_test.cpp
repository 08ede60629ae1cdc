#include "daemon/core/grants.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <random>
#include <string>

#include "tests/support/core_harness.hpp"
#include "tests/support/order_runner.hpp"

namespace hotkv::test {
namespace {

using Ending = OrderRunner::Ending;
constexpr std::uint64_t kChunk = 4096;  // one chunk of 16 tokens, one extent

bool operator==(const core::Account& a, const core::Account& b) {
  return a.provisioned == b.provisioned && a.used == b.used && a.kept == b.kept &&
         a.free == b.free && a.in_transit == b.in_transit;
}

class Grants : public ::testing::Test {
 protected:
  explicit Grants(std::uint64_t chunks = 16, std::uint32_t waiting_max = 4) {
    limits.max_bytes = chunks * kChunk;
    limits.waiting_grants_max = waiting_max;
    begin();
  }
  void begin() {
    h = std::make_unique<CoreHarness>(limits);
    runner = std::make_unique<OrderRunner>(*h);
    shard = h->add_shard(small_recipe({0, 1}, "mine"), 1);
    worker = std::make_unique<CoreClient>(*h, shard);
    other = std::make_unique<CoreClient>(*h, h->add_shard(small_recipe({0, 1}, "theirs"), 2));
  }
  void TearDown() override {
    EXPECT_EQ(h->core->verify(), std::nullopt);
    EXPECT_LE(runner->held_bytes_max(), limits.max_bytes);
    EXPECT_EQ(runner->contradictions(), 0u);
  }

  // Asks for room up to `up_to` tokens; the ticket, where the answer has to wait.
  std::variant<core::Position, Refusal, core::Waiting> ask(CoreClient& of,
                                                           const std::string& session,
                                                           std::uint32_t up_to) {
    const auto position = of.open(session, 1).value();
    auto answer =
        h->core->append(of.client, id(session), Epoch{1}, position.generation, TokenCount{up_to});
    h->core->end_message(of.client.shard);
    return answer;
  }
  std::uint64_t wait_for(CoreClient& of, const std::string& session, std::uint32_t up_to) {
    return std::get<core::Waiting>(ask(of, session, up_to)).ticket;
  }
  core::Account account() const { return h->core->status().account; }
  std::uint32_t waiting() const { return h->core->status().waiting_grants; }

  core::Limits limits = CoreHarness::small_limits();
  std::unique_ptr<CoreHarness> h;
  std::unique_ptr<OrderRunner> runner;
  core::ShardId shard;
  std::unique_ptr<CoreClient> worker, other;
};

TEST_F(Grants, WhatIsWritableAlreadyIsAnsweredAtOnce) {
  ASSERT_TRUE(worker->open("a", 1));
  ASSERT_TRUE(worker->append("a", 1, 5));
  for (const std::uint32_t up_to : {0u, 5u, 16u}) {
    const auto answer = ask(*worker, "a", up_to);
    ASSERT_TRUE(std::holds_alternative<core::Position>(answer));
    EXPECT_EQ(std::get<core::Position>(answer).writable, TokenCount{16});
  }
}

TEST_F(Grants, AnAppendWithoutMemoryWaitsForItsOrder) {
  const auto ticket = wait_for(*worker, "a", 40);
  EXPECT_EQ(waiting(), 1u);
  EXPECT_FALSE(runner->answer(ticket).has_value());
  EXPECT_EQ(account().in_transit, 3 * kChunk);
  ASSERT_TRUE(runner->run_one());
  const auto answer = runner->answer(ticket);
  ASSERT_TRUE(answer.has_value() && answer->has_value());
  EXPECT_EQ(answer->value().writable, TokenCount{48});
  EXPECT_EQ(account().used, 3 * kChunk);
  EXPECT_EQ(waiting(), 0u);
}

// FR-005: whatever the k-th chunk fails on, the account is the one before, and a retry succeeds.
// FR-109: pages taken on the way are given back, at whichever it fails, and the next try works.
TEST_F(Grants, AFailureAtAnyChunkUndoesTheWholeAppend) {
  for (std::uint32_t k = 0; k < 16; ++k) {
    for (const Ending ending : {Ending::failed_before_punching, Ending::failed_after_punching}) {
      SCOPED_TRACE(k);
      begin();
      if (k > 0) {  // k chunks are free here
        ASSERT_TRUE(worker->open("before", 1));
        ASSERT_TRUE(worker->grant("before", 1, k * 16));
        ASSERT_TRUE(worker->release("before", 1));
      }
      ASSERT_TRUE(worker->open("a", 1));
      const auto before = account();
      const auto ticket = wait_for(*worker, "a", 16 * 16);
      EXPECT_EQ(account().provisioned, 16 * kChunk);
      ASSERT_TRUE(runner->run_one(ending));
      const auto answer = runner->answer(ticket);
      ASSERT_TRUE(answer.has_value());
      ASSERT_FALSE(answer->has_value());
      EXPECT_TRUE(answer->error().is(ErrorCode::memory_unavailable));
      EXPECT_NE(answer->error().message().find("append session \"a\""), std::string::npos);
      EXPECT_TRUE(account() == before);
      EXPECT_EQ(h->core->contexts().size(), 1u);
      EXPECT_EQ(h->core->contexts().at(0).writable, TokenCount{0});
      EXPECT_EQ(h->core->verify(), std::nullopt);
      ASSERT_TRUE(worker->append("a", 1, 16 * 16));
      EXPECT_EQ(h->core->verify(), std::nullopt);
    }
  }
}

TEST_F(Grants, AFailedOrderWithPunchesLeavesTheAccountEqualOrWithoutThem) {
  for (const bool punched : {false, true}) {
    SCOPED_TRACE(punched);
    ASSERT_TRUE(other->open("b", 1));
    ASSERT_TRUE(other->grant("b", 1, 16 * 16));
    ASSERT_TRUE(other->release("b", 1));
    ASSERT_TRUE(worker->open("a", 1));
    const auto before = account();
    const auto ticket = wait_for(*worker, "a", 3 * 16);
    EXPECT_EQ(runner->waiting().front().punch.size(), 3u);
    runner->run_one(punched ? Ending::failed_after_punching : Ending::failed_before_punching);
    EXPECT_FALSE(runner->answer(ticket)->has_value());
    const std::uint64_t gone = punched ? 3 * kChunk : 0;
    EXPECT_EQ(account().provisioned, before.provisioned - gone);
    EXPECT_EQ(account().free, before.free - gone);
    EXPECT_EQ(account().in_transit, 0u);
    EXPECT_EQ(account().provisioned, runner->held_bytes());
    ASSERT_TRUE(worker->append("a", 1, 3 * 16));
    ASSERT_TRUE(worker->release("a", 1));
  }
}

TEST_F(Grants, AContextReleasedWhileItsAppendWaitsIsAMissAndItsChunksAreFree) {
  ASSERT_TRUE(worker->open("a", 1));
  const auto ticket = wait_for(*worker, "a", 40);
  ASSERT_TRUE(other->open("b", 1));
  ASSERT_TRUE(worker->release("a", 1));
  runner->run_all();
  const auto answer = runner->answer(ticket);
  ASSERT_TRUE(answer.has_value() && !answer->has_value());
  EXPECT_TRUE(answer->error().is(MissReason::released));
  EXPECT_EQ(account().used, 0u);
  EXPECT_EQ(account().free, 3 * kChunk);
}

TEST_F(Grants, AContextThatBeganAnewWhileItsAppendWaitsDoesNotGetTheGrant) {
  const auto ticket = wait_for(*worker, "a", 40);
  ASSERT_TRUE(worker->release("a", 1));
  ASSERT_TRUE(worker->open("a", 1));  // the same session and epoch, in the same slot
  runner->run_all();
  EXPECT_TRUE(runner->answer(ticket)->error().is(ErrorCode::lease_lost));
  EXPECT_EQ(account().used, 0u);
}

TEST_F(Grants, AnAppendThatWaitsIsSupersededLikeAnyOther) {
  const auto ticket = wait_for(*worker, "a", 40);
  ASSERT_TRUE(worker->open("a", 2));
  runner->run_all();
  EXPECT_TRUE(runner->answer(ticket)->error().is(MissReason::superseded_epoch));
  EXPECT_EQ(account().used, 0u);
}

TEST_F(Grants, ATruncateWhileItsAppendWaitsEndsTheGenerationOfTheAppend) {
  ASSERT_TRUE(worker->open("a", 1));
  ASSERT_TRUE(worker->append("a", 1, 10));
  const auto ticket = wait_for(*worker, "a", 80);
  ASSERT_TRUE(worker->truncate("a", 1, 4));
  runner->run_all();
  EXPECT_TRUE(runner->answer(ticket)->error().is(ErrorCode::lease_lost));
  EXPECT_EQ(account().used, kChunk);
  ASSERT_TRUE(worker->append("a", 1, 80));
}

TEST_F(Grants, ALeaseTakenOverWhileItsAppendWaitsTakesTheGrantAway) {
  const auto ticket = wait_for(*worker, "a", 40);
  CoreClient next(*h, shard);
  worker->hang_up();
  ASSERT_TRUE(next.open("a", 1));
  runner->run_all();
  EXPECT_FALSE(runner->answer(ticket).has_value());  // nobody is there to be told
  EXPECT_EQ(account().used, 0u);
  EXPECT_EQ(account().free, 3 * kChunk);
}

// FR-004: what a client had on order when it died is anybody's.
TEST_F(Grants, AClientThatDiesWhileItsAppendWaitsLeavesNothingBooked) {
  ASSERT_TRUE(worker->open("x", 1));
  ASSERT_TRUE(worker->grant("x", 1, 5 * 16));
  ASSERT_TRUE(worker->release("x", 1));
  CoreClient dying(*h, shard);
  const auto ticket = wait_for(dying, "a", 8 * 16);
  EXPECT_EQ(account().used, 5 * kChunk);
  EXPECT_EQ(h->core->verify(), std::nullopt);
  dying.die();
  EXPECT_EQ(account().used, 0u);
  EXPECT_EQ(h->core->verify(), std::nullopt);
  runner->run_all();
  EXPECT_FALSE(runner->answer(ticket).has_value());
  EXPECT_EQ(account().free, 8 * kChunk);
  EXPECT_EQ(waiting(), 0u);
}

// FR-004: a loop of workers that reserve, write half, and are killed never runs out of memory.
TEST_F(Grants, WorkersThatDieBetweenReservingAndPublishingDoNotFillTheBudget) {
  ASSERT_TRUE(worker->open("a", 1));
  ASSERT_TRUE(worker->append("a", 1, 20));
  ASSERT_TRUE(worker->close("a", 1));
  for (int round = 0; round < 100; ++round) {
    CoreClient dying(*h, shard);
    const auto opened = dying.open("a", 1);
    ASSERT_TRUE(opened.has_value());
    EXPECT_EQ(opened->length, TokenCount{20});
    const auto granted = dying.grant("a", 1, 20 + 8 * 16);
    ASSERT_TRUE(granted.has_value()) << granted.error().message();
    const auto writer = dying.pin_for_writing(*granted).value();
    dying.write("a", 1, writer, 20, 20 + 4 * 16, 9);
    dying.die();
    EXPECT_LE(account().used, 10 * kChunk);
    EXPECT_EQ(account().kept, 0u);
  }
  const auto view = worker->resolve("a", 1, 20).value();
  EXPECT_EQ(worker->wrong_bytes("a", 1, view), 0u);
  runner->run_all();
}

// FR-004: room granted behind the published length goes back when its holder is gone; else an idle
// context of one token could hold the whole budget.
TEST_F(Grants, GrantsOfADeadHolderAreFreeAgain) {
  ASSERT_TRUE(worker->open("a", 1));
  ASSERT_TRUE(worker->append("a", 1, 20));
  const auto before = account();
  ASSERT_TRUE(worker->grant("a", 1, 20 + 8 * 16));
  worker->die();
  EXPECT_EQ(account().used, before.used);
}

// A worker that is killed right behind its question: the search for memory finds out that it is
// gone, and frees what it had been granted, while its append is being reckoned.
TEST_F(Grants, AHolderThatIsFoundGoneByItsOwnAppendGetsNothing) {
  const auto opened = worker->open("a", 1).value();
  ASSERT_TRUE(worker->grant("a", 1, 8 * 16));
  ASSERT_TRUE(other->open("b", 1));
  ASSERT_TRUE(other->pin_for_writing(other->grant("b", 1, 8 * 16).value()));
  h->liveness.gone.insert(worker->client);
  h->now_ms += 1000;  // an occasion to ask after everybody
  const auto answer =
      h->core->append(worker->client, id("a"), Epoch{1}, opened.generation, TokenCount{12 * 16});
  ASSERT_TRUE(std::holds_alternative<Refusal>(answer));
  EXPECT_TRUE(std::get<Refusal>(answer).is(ErrorCode::lease_lost));
  EXPECT_EQ(account().used, 8 * kChunk) << "what it had been granted is free";
}

// 256 appends that cannot be had, in one message: one search.
TEST_F(Grants, AMessageOfHopelessAppendsSearchesOnce) {
  ASSERT_TRUE(other->open("b", 1));
  ASSERT_TRUE(other->pin_for_writing(other->grant("b", 1, 8 * 16).value()));
  const auto opened = worker->open("a", 1).value();
  const auto in_vain = [&] { return h->core->status().shards.at(0).counters.evictions_in_vain; };
  for (int message = 1; message <= 2; ++message) {
    for (std::uint32_t i = 0; i < 256; ++i) {
      const auto answer = h->core->append(worker->client, id("a"), Epoch{1}, opened.generation,
                                          TokenCount{9 * 16 + i % 100});
      ASSERT_TRUE(std::get<Refusal>(answer).is(ErrorCode::budget_exceeded));
    }
    EXPECT_EQ(in_vain(), message);
    h->core->end_message(worker->client.shard);
  }
}

// What one context could not get another one may: the first is evicted for it.
TEST_F(Grants, OneThatWasRefusedCanStillGoForTheNextOfTheMessage) {
  ASSERT_TRUE(worker->open("big", 1));
  ASSERT_TRUE(worker->append("big", 1, 11 * 16));
  ASSERT_TRUE(worker->open("small", 1));
  ASSERT_TRUE(worker->append("small", 1, 2 * 16));
  ASSERT_TRUE(other->open("pinned", 1));
  ASSERT_TRUE(other->pin_for_writing(other->grant("pinned", 1, 3 * 16).value()));
  const auto big = worker->open("big", 1).value().generation;
  const auto small = worker->open("small", 1).value().generation;
  const auto append = [&](const char* session, Generation generation, std::uint32_t chunks) {
    return h->core->append(worker->client, id(session), Epoch{1}, generation,
                           TokenCount{chunks * 16});
  };
  EXPECT_TRUE(std::get<Refusal>(append("big", big, 14)).is(ErrorCode::budget_exceeded));
  EXPECT_FALSE(std::holds_alternative<Refusal>(append("small", small, 8)));
}

TEST_F(Grants, AppendsOfOneContextThatWaitForOneOrderAreBounded) {
  for (int i = 0; i < 16; ++i) wait_for(*worker, "a", 20);
  EXPECT_TRUE(std::get<Refusal>(ask(*worker, "a", 20)).is(ErrorCode::too_many_waiting));
  EXPECT_TRUE(std::holds_alternative<core::Waiting>(ask(*worker, "b", 20)));
  runner->run_all();
}

TEST_F(Grants, HalfTheQueueIsOneOwnersAndItIsFreeAgainWhenOrdersEnd) {
  for (int i = 0; i < 2; ++i) wait_for(*worker, "s" + std::to_string(i), 16);
  for (int round = 0; round < 2; ++round) {
    CoreClient& of = round == 0 ? *worker : *other;
    const auto before = account();
    const auto answer = ask(of, "one more", 16);
    if (round == 0) {
      ASSERT_TRUE(std::holds_alternative<Refusal>(answer));
      EXPECT_TRUE(std::get<Refusal>(answer).is(ErrorCode::too_many_waiting));
      EXPECT_TRUE(account() == before);
    } else {
      EXPECT_TRUE(std::holds_alternative<core::Waiting>(answer));
    }
  }
  EXPECT_EQ(waiting(), 3u);
  runner->run_all();
  EXPECT_TRUE(worker->append("one more", 1, 16));
}

TEST_F(Grants, TheWholeQueueIsBounded) {
  CoreClient third(*h, h->add_shard(small_recipe({0, 1}, "third"), 3));
  for (CoreClient* of : {worker.get(), other.get()}) {
    for (int i = 0; i < 2; ++i) wait_for(*of, "s" + std::to_string(i), 16);
  }
  EXPECT_TRUE(std::get<Refusal>(ask(third, "s", 16)).is(ErrorCode::too_many_waiting));
  runner->run_one();
  EXPECT_TRUE(std::holds_alternative<core::Waiting>(ask(third, "s", 16)));
  runner->run_all();
}

TEST_F(Grants, SeveralWaitersGetEachItsOwnChunksInWhateverOrderTheyEnd) {
  const auto a = wait_for(*worker, "a", 40);
  const auto b = wait_for(*other, "b", 40);
  const auto c = wait_for(*worker, "c", 40);
  std::swap(runner->waiting().front(), runner->waiting().back());
  runner->run_all();
  for (const auto ticket : {a, b, c}) {
    const auto answer = runner->answer(ticket);
    ASSERT_TRUE(answer.has_value() && answer->has_value());
    EXPECT_EQ(answer->value().writable, TokenCount{48});
  }
  EXPECT_EQ(account().used, 9 * kChunk);
}

TEST_F(Grants, ASecondAppendOfAContextJoinsTheOrderOfTheFirst) {
  const auto longer = wait_for(*worker, "a", 60);
  const auto shorter = wait_for(*worker, "a", 20);
  EXPECT_EQ(waiting(), 1u);
  runner->run_all();
  EXPECT_EQ(runner->answer(longer)->value().writable, TokenCount{64});
  EXPECT_EQ(runner->answer(shorter)->value().writable, TokenCount{64});
  EXPECT_EQ(account().used, 4 * kChunk);
}

TEST_F(Grants, ALongerAppendOfAContextThatWaitsIsRefused) {
  const auto first = wait_for(*worker, "a", 20);
  const auto longer = ask(*worker, "a", 60);
  ASSERT_TRUE(std::holds_alternative<Refusal>(longer));
  EXPECT_TRUE(std::get<Refusal>(longer).is(ErrorCode::too_many_waiting));
  runner->run_all();
  EXPECT_TRUE(runner->answer(first)->has_value());
  EXPECT_TRUE(worker->append("a", 1, 60));
}

TEST_F(Grants, WhatWaitingAppendsHaveBookedNobodyElseGets) {
  ASSERT_TRUE(worker->open("x", 1));
  ASSERT_TRUE(worker->grant("x", 1, 2 * 16));
  ASSERT_TRUE(worker->release("x", 1));
  const auto ticket = wait_for(*worker, "a", 3 * 16);  // books both free chunks, orders a third
  EXPECT_EQ(account().used, 2 * kChunk);
  EXPECT_TRUE(std::holds_alternative<core::Waiting>(ask(*worker, "b", 16)));
  runner->run_all();
  EXPECT_TRUE(runner->answer(ticket)->has_value());
}

TEST_F(Grants, AnUnknownOrderChangesNothing) {
  wait_for(*worker, "a", 40);
  const auto before = account();
  h->core->memory_order_done(12345, {}, true);
  EXPECT_TRUE(account() == before);
}

TEST_F(Grants, ATailCopyThatNeedsMemoryWaitsForItToo) {
  ASSERT_TRUE(worker->open("a", 1));
  ASSERT_TRUE(worker->append("a", 1, 10, 1));
  const auto view = worker->resolve("a", 1, 10).value();
  ASSERT_TRUE(worker->truncate("a", 1, 5));
  const auto ticket = wait_for(*worker, "a", 6);
  runner->run_all();
  const auto position = runner->answer(ticket)->value();
  EXPECT_EQ(position.length, TokenCount{5});
  EXPECT_EQ(position.writable, TokenCount{16});
  EXPECT_EQ(worker->wrong_bytes("a", 1, view, std::vector<std::uint32_t>(10, 1)), 0u);
  const auto writer = worker->pin_for_writing(position).value();
  worker->write("a", 1, writer, 5, 6, 2);
  EXPECT_TRUE(worker->publish(writer, 5, 6));
  EXPECT_EQ(worker->wrong_bytes("a", 1, view, std::vector<std::uint32_t>(10, 1)), 0u);
}

TEST_F(Grants, MoreTokensThanAContextHoldsAreRefused) {
  for (const std::uint32_t up_to : {kContextTokensMax + 1, ~std::uint32_t{0}}) {
    const auto answer = ask(*worker, "a", up_to);
    ASSERT_TRUE(std::holds_alternative<Refusal>(answer));
    EXPECT_TRUE(std::get<Refusal>(answer).is(ErrorCode::invalid_argument));
  }
  EXPECT_TRUE(
      std::get<Refusal>(ask(*worker, "a", kContextTokensMax)).is(ErrorCode::budget_exceeded));
}

// The kernel's sum never passes the budget, whatever order the orders come and fail in.
TEST_F(Grants, ProvisionedNeverPassesTheBudgetAtAnyMoment) {
  std::mt19937 random(17);
  const auto below = [&](std::uint32_t n) { return static_cast<std::uint32_t>(random() % n); };
  CoreClient sister(*h, h->add_shard(small_recipe({0, 1}, "sister"), 1));
  CoreClient* const clients[] = {worker.get(), other.get(), &sister};
  for (int step = 0; step < 20'000; ++step) {
    h->now_ms += 10;
    CoreClient& of = *clients[below(3)];
    const std::string session = "s" + std::to_string(below(6));
    switch (below(6)) {
      case 0:
      case 1: (void)ask(of, session, 1 + below(10 * 16)); break;
      case 2: (void)of.release(session, 1); break;
      case 3: {
        const auto ending = below(5);
        runner->run_one(ending == 0   ? Ending::failed_before_punching
                        : ending == 1 ? Ending::failed_after_punching
                                      : Ending::success);
        break;
      }
      case 4: runner->run_one(); break;
      default: (void)of.close(session, 1); break;
    }
    ASSERT_EQ(h->core->verify(), std::nullopt) << "step " << step;
    ASSERT_LE(account().provisioned, limits.max_bytes);
    ASSERT_LE(runner->held_bytes(), limits.max_bytes) << "step " << step;
    if (runner->waiting().empty()) {
      ASSERT_EQ(account().provisioned, runner->held_bytes());
    }
  }
}

class GrantsWithAShortQueue : public Grants {
 protected:
  GrantsWithAShortQueue() : Grants(4, 1) {}
};

TEST_F(GrantsWithAShortQueue, NobodyIsEvictedForAnAppendThatMayNotWait) {
  ASSERT_TRUE(worker->open("first", 1));
  ASSERT_TRUE(worker->open("second", 1));
  for (const char* name : {"b1", "b2", "b3", "b4"}) {
    ++h->now_ms;
    ASSERT_TRUE(other->open(name, 1));
    ASSERT_TRUE(other->append(name, 1, 16));
  }
  wait_for(*worker, "first", 16);
  const auto contexts = h->core->contexts().size();
  EXPECT_TRUE(std::get<Refusal>(ask(*worker, "second", 16)).is(ErrorCode::too_many_waiting));
  EXPECT_EQ(h->core->contexts().size(), contexts);
}

// The first order gives 8 KiB back to get 4. The 4 KiB between them are nobody's until it has
// ended: it may fail before its punches, and then they are back.
TEST_F(GrantsWithAShortQueue, AnOrderThatGivesMoreThanItTakesAndFailsKeepsTheBudget) {
  for (const Ending ending :
       {Ending::failed_before_punching, Ending::failed_after_punching, Ending::success}) {
    limits.waiting_grants_max = 4;
    begin();
    CoreClient big(*h, h->add_shard(small_recipe({0, 5}, "8 KiB an extent"), 3));
    ASSERT_TRUE(big.open("b", 1));
    ASSERT_TRUE(big.grant("b", 1, 2 * 16));
    ASSERT_TRUE(big.release("b", 1));
    wait_for(*worker, "first", 16);
    wait_for(*worker, "second", 16);
    EXPECT_EQ(runner->waiting().front().punch.size(), 1u);
    EXPECT_EQ(h->core->verify(), std::nullopt);
    runner->run_one(ending);
    EXPECT_EQ(h->core->verify(), std::nullopt);
    runner->run_all();
    EXPECT_EQ(h->core->verify(), std::nullopt);
    EXPECT_LE(runner->held_bytes_max(), limits.max_bytes);
    EXPECT_EQ(account().provisioned, runner->held_bytes());
  }
}

}  // namespace
}  // namespace hotkv::test
