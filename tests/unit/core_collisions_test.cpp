// Ids chosen to collide: the key of the index's hash lies where clients can read it.

#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "shared/session_hash.hpp"
#include "tests/support/core_harness.hpp"

namespace hotkv::test {
namespace {

class CoreCollisions : public ::testing::Test {
 protected:
  CoreCollisions() : h(limits()), worker(h, h.add_shard()) {}
  static core::Limits limits() {
    auto limits = CoreHarness::small_limits();
    limits.session_cap = 300;  // an index of 1024 places, more than one look-up probes
    limits.tombstones = 300;
    return limits;
  }
  // The next id, in an order of its own, whose home is this place of the index.
  std::string id_with_home(std::uint64_t home) {
    const auto tables = h.tables(worker.client.shard);
    const std::uint64_t mask = tables.capacities().index_count - 1;
    for (;; ++counter_) {
      std::string candidate = "c" + std::to_string(counter_);
      if ((session_hash(id(candidate), tables.header().hash_key) & mask) == home) {
        ++counter_;
        return candidate;
      }
    }
  }

  CoreHarness h;
  CoreClient worker;

 private:
  std::uint64_t counter_ = 0;
};

TEST_F(CoreCollisions, AreRefusedBeyondTheBoundedProbeAndHurtNobodyElse) {
  for (std::uint32_t i = 0; i < kIndexProbesMax; ++i) {
    ASSERT_TRUE(worker.open(id_with_home(5), 1)) << i;
  }
  const auto refused = worker.open(id_with_home(5), 1);
  ASSERT_FALSE(refused.has_value());
  EXPECT_TRUE(refused.error().is(ErrorCode::too_many_sessions));
  EXPECT_TRUE(worker.open(id_with_home(700), 1).has_value());
  EXPECT_EQ(h.core->verify(), std::nullopt);
}

// Superseding frees a place in the index, and the entries behind it move up: the last one can move
// into the window of this very id and leave no place in it.
TEST_F(CoreCollisions, ANewEpochAmongThemIsAtWorstRefused) {
  const std::string first = id_with_home(5);
  const std::string second = id_with_home(5);
  ASSERT_TRUE(worker.open(first, 1));
  ASSERT_TRUE(worker.open(second, 1));
  for (std::uint32_t i = 0; i + 1 < kIndexProbesMax; ++i) {
    ASSERT_TRUE(worker.open(id_with_home(6), 1)) << i;
  }
  const auto superseding = worker.open(second, 2);
  if (!superseding) {
    EXPECT_TRUE(superseding.error().is(ErrorCode::too_many_sessions));
  }
  EXPECT_EQ(h.core->verify(), std::nullopt);
  EXPECT_TRUE(worker.open(first, 2).has_value());
}

}  // namespace
}  // namespace hotkv::test
