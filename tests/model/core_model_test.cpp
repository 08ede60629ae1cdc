// Random operations on the core and on a naive reference, restarts of the daemon among them. After
// each one: verify(), every length and miss, the account and the budget, and every byte of every
// pinned view.
//
//   HOTKV_SEED               the seed; printed
//   HOTKV_MODEL_OPERATIONS   how many, over all geometries; a million take some minutes
//
// It can fail. Each of these alone makes it fail within a thousand operations or a few:
//
//   Shard::end_generation: without kept_heads.keep(slot, old)
//   Shard::end_generation: without the ref of the next tip
//   Shard::needs_tail_copy: return false
//   Reclaim::choose_victims: without the look at the shard's pins
//   Core::Impl::expire: without the look at the pins
//   Rebuild::run: without adopt_chain of the kept heads, or without settle_base_tip

#include <gtest/gtest.h>

#include <chrono>
#include <cstdio>
#include <cstdlib>

#include "tests/model/core_model.hpp"

namespace hotkv::test {
namespace {

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
constexpr std::uint64_t kOperations = 12'000;
#else
constexpr std::uint64_t kOperations = 60'000;
#endif

std::uint64_t from_environment(const char* name, std::uint64_t otherwise) {
  const char* text = std::getenv(name);
  return text == nullptr ? otherwise : std::strtoull(text, nullptr, 10);
}

core::Limits tiny(std::uint64_t max_bytes) {
  auto limits = CoreHarness::small_limits();
  limits.max_bytes = max_bytes;
  limits.max_bytes_per_owner = max_bytes * 3 / 4;
  limits.session_cap = 5;
  limits.tombstones = 1000;  // nothing is forgotten: the reference remembers everything too
  limits.clients_per_shard = Model::kPagesOfAShard;
  limits.ttl_ms = 20'000;
  limits.waiting_grants_max = 4;  // two of one owner
  return limits;
}

Setting one_chunk_an_extent() {
  return {"one chunk an extent", tiny(24 * 4096), {{0, 1}, {2, 3}, {0, 1}}, 7};
}

// Shards whose extents differ: an order can give more than it takes.
Setting mixed_strides() {
  return {"mixed strides", tiny(28 * 4096), {{0, 1}, {0, 5}, {0, 9}}, 7};
}

Setting four_chunks_an_extent() {
  auto limits = tiny(6 * kHugePageBytes);
  limits.huge_pages = true;
  limits.chunk_tokens = 4096;  // of 128 bytes
  return {"four chunks an extent", limits, {{0, 1}, {2, 3}, {0, 1}}, 1900};
}

class CoreModel : public ::testing::TestWithParam<Setting (*)()> {};

// FR-017: what is in the index, who owns which chunk and what is pinned never part company.
TEST_P(CoreModel, AgreesWithTheReferenceAfterEveryOperation) {
  const std::uint64_t seed = from_environment(
      "HOTKV_SEED",
      static_cast<std::uint64_t>(std::chrono::steady_clock::now().time_since_epoch().count()));
  const std::uint64_t operations = from_environment("HOTKV_MODEL_OPERATIONS", kOperations) / 3;
  const Setting setting = GetParam()();
  std::printf("%s: HOTKV_SEED=%llu\n", setting.name, static_cast<unsigned long long>(seed));
  Model model(setting, seed);
  for (std::uint64_t i = 1; i <= operations; ++i) {
    SCOPED_TRACE(testing::Message()
                 << setting.name << ", HOTKV_SEED=" << seed << ", operation " << i);
    model.step(i);
    if (HasFatalFailure()) return;
  }
  model.finish();
  if (operations >= kOperations / 3) {
    EXPECT_TRUE(model.met_everything());
  }
}

INSTANTIATE_TEST_SUITE_P(Geometries, CoreModel,
                         ::testing::Values(one_chunk_an_extent, mixed_strides,
                                           four_chunks_an_extent));

}  // namespace
}  // namespace hotkv::test
