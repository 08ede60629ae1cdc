#include <gtest/gtest.h>

#include <time.h>

#include <algorithm>
#include <thread>

#include <hotkv/client.hpp>

#include "tests/support/fake_daemon.hpp"

namespace hotkv {
namespace {

using fake::Bytes;
using fake::FakeDaemon;
using fake::session_id;
using protocol::Type;
using std::chrono::milliseconds;

const SessionId kA = session_id("a");
// A deadline that a test waits out, and that a loaded machine still keeps where it must not pass.
constexpr milliseconds kShort{400};

// The first wrong byte of a view, or nothing.
std::string wrong_bytes(const View& view) {
  for (std::uint32_t layer = view.layers().first; layer <= view.layers().last; ++layer) {
    std::uint32_t token = 0;
    for (std::size_t piece = 0; piece < view.piece_count(); ++piece) {
      const std::uint32_t tokens = view.piece_tokens(piece).value();
      const auto keys = view.keys(layer, piece);
      const auto values = view.values(layer, piece);
      if (keys.size() != tokens * 16 || values.size() != tokens * 8) return "sizes";
      for (std::uint32_t i = 0; i < tokens; ++i, ++token) {
        const auto is = [&](bool is_key) {
          return
              [&, is_key](std::byte b) { return b == FakeDaemon::pattern(token, layer, is_key); };
        };
        if (!std::ranges::all_of(keys.subspan(i * 16, 16), is(true)) ||
            !std::ranges::all_of(values.subspan(i * 8, 8), is(false))) {
          return "token " + std::to_string(token) + " layer " + std::to_string(layer);
        }
      }
    }
    if (token != view.length().value()) return "pieces do not add up to the length";
  }
  return "";
}

TEST(Resolve, ShowsExactlyThePublishedTokensAroundEveryChunkEdge) {
  FakeDaemon daemon;
  const Client client = daemon.attach();
  for (const std::uint32_t tokens : {0u, 1u, 15u, 16u, 17u, 40u, 160u}) {
    const SessionId session = session_id("of " + std::to_string(tokens));
    daemon.put(session, Epoch{1}, TokenCount{tokens});
    const auto view = client.resolve(session, Epoch{1}, TokenCount{tokens});
    ASSERT_TRUE(view.has_value()) << view.error().message();
    EXPECT_EQ(view->length(), TokenCount{tokens});
    EXPECT_EQ(view->piece_count(), (tokens + 15) / 16);
    EXPECT_EQ(wrong_bytes(*view), "");
  }
  EXPECT_EQ(daemon.received(Type::explain), 0u) << "hits are memory's alone";
}

TEST(Resolve, ComparesTheLengthAsAsked) {
  FakeDaemon daemon;
  daemon.put(kA, Epoch{1}, TokenCount{20});
  const Client client = daemon.attach();
  EXPECT_EQ(client.resolve(kA, Epoch{1}, TokenCount{10}, LengthMatch::at_least)->length(),
            TokenCount{20});
  EXPECT_EQ(client.get(kA, Epoch{1})->length(), TokenCount{20});
  for (const std::uint32_t wrong : {0u, 19u, 21u}) {
    const auto miss = client.resolve(kA, Epoch{1}, TokenCount{wrong});
    ASSERT_FALSE(miss.has_value());
    EXPECT_EQ(miss.error().reason, MissReason::seq_len_mismatch);
    EXPECT_EQ(miss.error().known_length, TokenCount{20});
    EXPECT_EQ(miss.error().expected_length, TokenCount{wrong});
  }
  EXPECT_FALSE(client.resolve(kA, Epoch{1}, TokenCount{21}, LengthMatch::at_least).has_value());
  EXPECT_EQ(daemon.received(Type::explain), 4u) << "the daemon counts every miss";
}

TEST(Resolve, EveryMissHasTheDaemonsReason) {
  FakeDaemon daemon;
  const Client client = daemon.attach();
  EXPECT_EQ(client.get(kA, Epoch{1}).error().reason, MissReason::unknown_session);
  for (const MissReason reason :
       {MissReason::evicted_ttl, MissReason::evicted_lru, MissReason::released,
        MissReason::superseded_epoch, MissReason::admin_evicted, MissReason::lost_in_restart}) {
    daemon.put(kA, Epoch{1}, TokenCount{7});
    EXPECT_TRUE(client.get(kA, Epoch{1}).has_value());
    EXPECT_FALSE(client.get(kA, Epoch{2}).has_value());
    daemon.retire(kA, reason);
    const auto miss = client.get(kA, Epoch{1});
    ASSERT_FALSE(miss.has_value());
    EXPECT_EQ(miss.error().reason, reason);
    EXPECT_EQ(miss.error().known_length, TokenCount{7});
    EXPECT_EQ(miss.error().expected_length, std::nullopt);
    EXPECT_EQ(miss.error().age_ms, 5u);
    EXPECT_EQ(miss.error().cause, std::nullopt);
  }
}

TEST(Resolve, APinIsHeldExactlyAsLongAsTheView) {
  FakeDaemon daemon;
  daemon.put(kA, Epoch{1}, TokenCount{20});
  const Client client = daemon.attach();
  for (int i = 0; i < 3; ++i) {
    auto view = client.get(kA, Epoch{1});
    EXPECT_EQ(daemon.pins_held(), 1u);
    View moved = std::move(*view);
    EXPECT_EQ(daemon.pins_held(), 1u);
    EXPECT_TRUE(view->keys(3, 0).empty());  // NOLINT: moved from, and empty
    moved = *client.get(kA, Epoch{1});
    EXPECT_EQ(daemon.pins_held(), 1u);
  }
  EXPECT_EQ(daemon.pins_held(), 0u);
  EXPECT_FALSE(client.resolve(kA, Epoch{1}, TokenCount{1}).has_value());
  EXPECT_FALSE(client.get(session_id("b"), Epoch{1}).has_value());
  EXPECT_EQ(daemon.pins_held(), 0u) << "a miss leaves nothing behind";
}

TEST(Resolve, AViewStaysAsItWasWhateverBecomesOfItsContext) {
  FakeDaemon daemon;
  daemon.put(kA, Epoch{1}, TokenCount{20});
  std::optional<View> view;
  {
    const Client client = daemon.attach();
    view = *client.get(kA, Epoch{1});
    daemon.end_generation(kA);
    EXPECT_EQ(client.get(kA, Epoch{1})->length(), TokenCount{20});
    daemon.retire(kA, MissReason::evicted_lru);
    EXPECT_EQ(client.get(kA, Epoch{1}).error().reason, MissReason::evicted_lru);
    daemon.die();
  }
  EXPECT_EQ(wrong_bytes(*view), "") << "the view outlives client and daemon";
  EXPECT_EQ(daemon.pins_held(), 1u);
  view.reset();
  EXPECT_EQ(daemon.pins_held(), 0u);
}

TEST(Resolve, WithoutADaemonNothingHitsEvenWhatMemoryHolds) {
  FakeDaemon daemon;
  daemon.put(kA, Epoch{1}, TokenCount{20});
  const Client client = daemon.attach();
  ASSERT_TRUE(client.get(kA, Epoch{1}).has_value());
  daemon.die();
  while (client.is_connected()) std::this_thread::yield();
  for (const SessionId& session : {kA, session_id("b")}) {
    const auto miss = client.get(session, Epoch{1});
    ASSERT_FALSE(miss.has_value());
    EXPECT_EQ(miss.error().reason, MissReason::daemon_unavailable);
    EXPECT_EQ(miss.error().cause, ErrorCode::daemon_unavailable);
  }
}

TEST(Resolve, AHangUpWhileTheDaemonIsAskedIsAMissWithItsCause) {
  FakeDaemon daemon;
  daemon.script(Type::explain, [](const auto&) { return std::vector<Bytes>{}; });
  const Client client = daemon.attach();
  std::thread hang_up([&] {
    daemon.wait_for(Type::explain, 1);
    daemon.hang_up();
  });
  const auto miss = client.get(kA, Epoch{1});
  hang_up.join();
  EXPECT_EQ(miss.error().reason, MissReason::daemon_unavailable);
  EXPECT_EQ(miss.error().cause, ErrorCode::daemon_unavailable);
}

TEST(Resolve, ADaemonThatDoesNotAnswerIsAMissByTheDeadline) {
  FakeDaemon daemon;
  daemon.script(Type::explain, [](const auto&) { return std::vector<Bytes>{}; });
  const Client client = daemon.attach(Access::read, kShort);
  const auto miss = client.get(kA, Epoch{1});
  EXPECT_EQ(miss.error().reason, MissReason::daemon_unavailable);
  EXPECT_EQ(miss.error().cause, ErrorCode::deadline_exceeded);
}

TEST(Resolve, ADaemonThatInsistsIsBelievedABoundedNumberOfTimes) {
  FakeDaemon daemon;
  daemon.put(kA, Epoch{1}, TokenCount{5});
  daemon.script(Type::explain, [&](const FakeDaemon::Received& received) {
    FakeDaemon::Received asked_any = received;
    auto explain = received.operation<protocol::ExplainOperation>(0);
    explain.context.id[0] = kA.words()[0];
    explain.match = static_cast<std::uint32_t>(LengthMatch::any);
    std::memcpy(asked_any.operations.data(), &explain, sizeof explain);
    return std::vector<Bytes>{daemon.honest_answer(asked_any)};
  });
  const Client client = daemon.attach();
  const auto miss = client.get(session_id("b"), Epoch{1});
  EXPECT_EQ(miss.error().reason, MissReason::daemon_unavailable);
  EXPECT_EQ(daemon.received(Type::explain), 4u);
}

TEST(Resolve, WhatIsThereAfterAllIsShownAfterTheDaemonSaysSo) {
  FakeDaemon daemon;
  const Client client = daemon.attach();
  daemon.put(kA, Epoch{1}, TokenCount{5});
  // As while the daemon shifts index entries: the entry is not seen by the first look.
  std::uint64_t place = 0;
  while (daemon.index(place).load() == 0) ++place;
  const std::uint64_t entry = daemon.index(place).exchange(0);
  daemon.script(Type::explain, [&, entry, place](const FakeDaemon::Received& received) {
    daemon.index(place) = entry;
    return std::vector<Bytes>{daemon.honest_answer(received)};
  });
  EXPECT_TRUE(client.resolve(kA, Epoch{1}, TokenCount{5}).has_value());
  EXPECT_EQ(daemon.received(Type::explain), 1u);
}

TEST(Resolve, HostileAnswersAreMissesAndNeverACrash) {
  FakeDaemon daemon;
  const Client client = daemon.attach(Access::read, milliseconds(2000));
  const auto answer_with = [&](auto change) {
    daemon.script(Type::explain, [&, change](const FakeDaemon::Received& received) {
      Bytes frame = daemon.honest_answer(received);
      protocol::OperationResult result;
      std::memcpy(&result, frame.data() + 32, sizeof result);
      change(result);
      std::memcpy(frame.data() + 32, &result, sizeof result);
      return std::vector<Bytes>{frame};
    });
    return client.get(kA, Epoch{1}).error();
  };
  EXPECT_EQ(answer_with([](auto& r) { r.outcome = 9; }).cause, ErrorCode::protocol_error);
  EXPECT_EQ(answer_with([](auto& r) { r.code = 999; }).cause, ErrorCode::protocol_error);
  EXPECT_EQ(answer_with([](auto& r) {
              r.outcome = 2;
              r.code = static_cast<std::uint32_t>(ErrorCode::incompatible_recipe);
              r.text_offset = 0xffff'ffff;
              r.text_bytes = 0xffff'ffff;
            }).cause,
            ErrorCode::incompatible_recipe);
  EXPECT_EQ(answer_with([](auto& r) {
              r.outcome = 0;
              r.slot = 0xffff'ffff;
            }).reason,
            MissReason::daemon_unavailable);
}

TEST(Resolve, MemoryThatContradictsItselfIsRefusedAndLeavesNoPin) {
  FakeDaemon daemon;
  daemon.put(kA, Epoch{1}, TokenCount{40});
  const Client client = daemon.attach();
  const SlotIndex slot = daemon.slot_of(kA);
  const Generation generation = load_head(daemon.slot(slot).head).generation;
  const auto cause = [&] {
    const auto view = client.get(kA, Epoch{1});
    EXPECT_EQ(daemon.pins_held(), view ? 1u : 0u);
    return view ? std::nullopt : view.error().cause;
  };
  // A writer of the shard can store any length.
  daemon.length(slot) = LengthWord{generation, TokenCount{49}}.bits();
  EXPECT_EQ(cause(), ErrorCode::shard_damaged);
  daemon.length(slot) = LengthWord{generation, TokenCount{0xffff'ffff}}.bits();
  EXPECT_EQ(cause(), ErrorCode::shard_damaged);
  daemon.length(slot) = LengthWord{generation, TokenCount{48}}.bits();
  EXPECT_EQ(cause(), std::nullopt);
  daemon.end_generation(kA);  // forget the chain
  daemon.chunk_word(daemon.tip_of(kA)) = ~std::uint64_t{0};
  EXPECT_EQ(cause(), ErrorCode::shard_damaged);
}

TEST(Resolve, WhenEveryPinWordIsTakenItSaysSo) {
  FakeDaemon daemon;
  daemon.put(kA, Epoch{1}, TokenCount{5});
  const Client client = daemon.attach();
  std::vector<View> views;
  for (std::uint32_t i = 0; i < kPinsPerPage; ++i) views.push_back(*client.get(kA, Epoch{1}));
  const auto miss = client.get(kA, Epoch{1});
  EXPECT_EQ(miss.error().reason, MissReason::daemon_unavailable);
  EXPECT_EQ(miss.error().cause, ErrorCode::too_many_pins);
  views.pop_back();
  EXPECT_TRUE(client.get(kA, Epoch{1}).has_value());
}

TEST(Resolve, AHitIsNotedInTheTouchWordAndAMissIsNot) {
  FakeDaemon daemon;
  daemon.put(kA, Epoch{1}, TokenCount{5});
  const Client client = daemon.attach();
  const SlotIndex slot = daemon.slot_of(kA);
  EXPECT_FALSE(client.resolve(kA, Epoch{1}, TokenCount{4}).has_value());
  EXPECT_EQ(daemon.touch_word(slot).load(), 0u);
  EXPECT_TRUE(client.resolve(kA, Epoch{1}, TokenCount{5}).has_value());
  timespec now{};
  ::clock_gettime(CLOCK_MONOTONIC, &now);
  const auto now_ms = static_cast<std::uint64_t>(now.tv_sec) * 1000 +
                      static_cast<std::uint64_t>(now.tv_nsec) / 1'000'000;
  EXPECT_NE(daemon.touch_word(slot).load(), 0u);
  EXPECT_LT(touch_age_ms(daemon.touch_word(slot).load(), now_ms), 60'000u);
}

TEST(Resolve, AnotherRecipeIsRefusedWithItsFields) {
  FakeDaemon daemon;
  daemon.put(kA, Epoch{1}, TokenCount{5});
  const Client client = daemon.attach();
  EXPECT_TRUE(client.resolve_as(daemon.recipe(), kA, Epoch{1}, TokenCount{5}).has_value());
  const auto refused =
      client.resolve_as(fake::small_recipe("tiny", DType::bf16), kA, Epoch{1}, TokenCount{5});
  ASSERT_FALSE(refused.has_value());
  EXPECT_TRUE(refused.error().is(ErrorCode::incompatible_recipe));
  EXPECT_NE(refused.error().message().find("dtype"), std::string::npos);
  EXPECT_TRUE(client.resolve_as(daemon.recipe(), kA, Epoch{1}, TokenCount{6})
                  .error()
                  .is(MissReason::seq_len_mismatch));
}

TEST(View, GathersWholeLayersAndNothingIntoTooLittleRoom) {
  FakeDaemon daemon;
  daemon.put(kA, Epoch{1}, TokenCount{37});
  const Client client = daemon.attach();
  const View view = *client.get(kA, Epoch{1});
  Bytes keys(37 * 16);
  Bytes values(37 * 8);
  EXPECT_EQ(view.gather_keys(4, keys), keys.size());
  EXPECT_EQ(view.gather_values(3, values), values.size());
  for (std::uint32_t token = 0; token < 37; ++token) {
    EXPECT_EQ(keys[token * 16 + 15], FakeDaemon::pattern(token, 4, true));
    EXPECT_EQ(values[token * 8], FakeDaemon::pattern(token, 3, false));
  }
  EXPECT_EQ(view.gather_keys(4, std::span(keys).first(keys.size() - 1)), 0u);
  EXPECT_EQ(view.gather_keys(2, keys), 0u);
  EXPECT_EQ(view.gather_keys(5, keys), 0u);
}

// FR-101: a view is the shared memory itself, never a copy of it.
TEST(View, IsReadInPlaceAndEmptyForWhatIsNotThere) {
  FakeDaemon daemon;
  daemon.put(kA, Epoch{1}, TokenCount{17});
  const Client client = daemon.attach();
  const View view = *client.get(kA, Epoch{1});
  const auto before = view.keys(3, 1);
  daemon.chunk(daemon.tip_of(kA))[0] = std::byte{0xab};
  EXPECT_EQ(before[0], std::byte{0xab}) << "the same memory, not a copy";
  EXPECT_EQ(view.piece_tokens(1), TokenCount{1});
  EXPECT_EQ(view.piece_tokens(2), TokenCount{0});
  EXPECT_TRUE(view.keys(3, 2).empty());
  EXPECT_TRUE(view.keys(2, 0).empty());
  EXPECT_TRUE(view.values(5, 0).empty());
  EXPECT_TRUE(view.keys(0xffff'ffff, ~std::size_t{0}).empty());
}

}  // namespace
}  // namespace hotkv
