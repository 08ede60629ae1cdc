// What the daemon does between two steps of the client's half of each protocol.

#include <gtest/gtest.h>

#include <functional>
#include <map>
#include <string>

#include <hotkv/client.hpp>

#include "tests/support/at_fault_point.hpp"
#include "tests/support/fake_daemon.hpp"

namespace hotkv {
namespace {

using fake::FakeDaemon;
using fake::session_id;
using protocol::Type;

const SessionId kA = session_id("a");
const SessionId kB = session_id("b");

using At = testing::AtFaultPoint;

// The slot of `from` is freed and made another session's, as a daemon reuses it.
void reuse_slot(FakeDaemon& daemon, const SessionId& from, const SessionId& to) {
  const SlotIndex slot = daemon.slot_of(from);
  SlotRecord& record = daemon.slot(slot);
  const HeadWord head = load_head(record.head);
  store_head(record.head, {Generation{head.generation.value() + 1}, Tip::free()});
  for (std::size_t i = 0; i < SessionId::kWords; ++i) {
    record.id[i].store(to.words()[i], std::memory_order_release);
  }
  record.id_bytes.store(to.size_bytes(), std::memory_order_release);
  const Generation next{head.generation.value() + 2};
  const auto length = LengthWord::from_bits(daemon.length(slot).load());
  exchange_length(daemon.length(slot), {next, length.tokens});
  store_head(record.head, {next, head.tip});
}

class FaultPoints : public ::testing::Test {
 protected:
  FaultPoints() { daemon.put(kA, Epoch{1}, TokenCount{20}); }
  FakeDaemon daemon;
  Client client = daemon.attach();
};

TEST_F(FaultPoints, AGenerationThatEndsAroundThePinIsNeverShown) {
  for (const char* point :
       {"resolve.between-head-and-id", "resolve.before-pin", "resolve.between-pin-and-confirm",
        "confirm-pin.between-length-and-head"}) {
    const At at(point, [&] { daemon.end_generation(kA); });
    const auto view = client.resolve(kA, Epoch{1}, TokenCount{20});
    ASSERT_TRUE(view.has_value()) << point;
    const Generation now = load_head(daemon.slot(daemon.slot_of(kA)).head).generation;
    ASSERT_EQ(daemon.pins_held(), 1u) << point;
    for (const AtomicWord& word : daemon.page(PageIndex{0}).pins) {
      const auto pin = load_untrusted_pin(word);
      EXPECT_EQ(pin.value_or(PinWord{SlotIndex{0}, now}).generation, now) << point;
    }
  }
}

TEST_F(FaultPoints, ASlotThatBecomesAnotherSessionsIsAMiss) {
  for (const char* point :
       {"resolve.between-head-and-id", "resolve.before-pin", "resolve.between-pin-and-confirm",
        "confirm-pin.between-length-and-head"}) {
    FakeDaemon fresh;
    fresh.put(kA, Epoch{1}, TokenCount{20});
    const Client reader = fresh.attach(Access::read);
    const At at(point, [&] { reuse_slot(fresh, kA, kB); });
    // This daemon still knows kA, so it says "there" until the client stops believing it.
    const auto view = reader.resolve(kA, Epoch{1}, TokenCount{20});
    EXPECT_FALSE(view.has_value()) << point;
    EXPECT_EQ(fresh.pins_held(), 0u) << point;
  }
}

TEST_F(FaultPoints, ATruncateBetweenPinAndLengthIsAMismatchAndNotOldTokens) {
  const At at("resolve.between-pin-and-confirm", [&] {
    daemon.length(daemon.slot_of(kA)) = LengthWord{
        load_head(daemon.slot(daemon.slot_of(kA)).head).generation,
        TokenCount{7}}.bits();
  });
  const auto miss = client.resolve(kA, Epoch{1}, TokenCount{20});
  ASSERT_FALSE(miss.has_value());
  EXPECT_EQ(miss.error().reason, MissReason::seq_len_mismatch);
  EXPECT_EQ(miss.error().known_length, TokenCount{7});
}

TEST_F(FaultPoints, AContextThatNeverStandsStillEndsInAMissOfBoundedCost) {
  const At at(
      "resolve.between-pin-and-confirm", [&] { daemon.end_generation(kA); }, true);
  const auto miss = client.resolve(kA, Epoch{1}, TokenCount{20});
  ASSERT_FALSE(miss.has_value());
  EXPECT_EQ(miss.error().reason, MissReason::daemon_unavailable);
  EXPECT_EQ(daemon.received(Type::explain), 4u);
  EXPECT_EQ(daemon.pins_held(), 0u);
}

TEST_F(FaultPoints, AnAppendWhosePinComesTooLateAsksWhatBecameOfTheContext) {
  Context context = *client.open(kB, Epoch{1});
  ASSERT_TRUE(context.reserve(TokenCount{16}).has_value());
  {
    const At at("append.between-pin-and-confirm", [&] { daemon.end_generation(kB); });
    EXPECT_TRUE(context.append(TokenCount{1}).error().is(ErrorCode::lease_lost));
  }
  Context again = *client.open(kB, Epoch{1});
  ASSERT_TRUE(again.append(TokenCount{1}).has_value());
  {
    const At at("append.between-pin-and-confirm",
                [&] { daemon.retire(kB, MissReason::evicted_lru); });
    EXPECT_TRUE(again.append(TokenCount{1}).error().is(MissReason::evicted_lru));
  }
  EXPECT_EQ(daemon.pins_held(), 0u);
}

TEST_F(FaultPoints, APublishThatComesAfterTheEndOfItsGenerationShowsNothing) {
  Context context = *client.open(kB, Epoch{1});
  auto writer = context.append(TokenCount{4});
  ASSERT_TRUE(writer.has_value());
  const At at("publish.before-exchange", [&] { daemon.end_generation(kB); });
  EXPECT_EQ(writer->publish().error().code, ErrorCode::lease_lost);
  EXPECT_EQ(client.get(kB, Epoch{1})->length(), TokenCount{0});
}

}  // namespace
}  // namespace hotkv
