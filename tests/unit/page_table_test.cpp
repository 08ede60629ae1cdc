#include "daemon/core/page_table.hpp"

#include <gtest/gtest.h>

#include "tests/support/core_harness.hpp"

namespace hotkv::test {
namespace {

class PageTable : public ::testing::Test {
 protected:
  ClientPage& page(PageIndex index) { return tables.untrusted_page(index); }
  void pin(PageIndex index, std::uint32_t word, PinWord claim) {
    page(index).high_water.store(std::max(page(index).high_water.load(), word + 1));
    page(index).pins[word].store(claim.bits());
  }

  // The mapping is gone, and the connection too.
  void free(PageIndex index) {
    pages.end_claims(index);
    pages.disconnect(index);
  }

  CoreHarness h;
  core::ShardTables tables = h.tables(h.add_shard());
  core::StoreGate gate;
  core::PageTable pages{tables, gate};
};

TEST_F(PageTable, GivesEachPageOnceUntilItIsFree) {
  for (std::uint32_t i = 0; i < h.limits.clients_per_shard; ++i) {
    EXPECT_EQ(pages.take(Access::write, 100 + i, 7), PageIndex{i});
  }
  EXPECT_EQ(pages.take(Access::write, 1, 7), std::nullopt);
  free(PageIndex{2});
  EXPECT_EQ(pages.taken(), (std::vector{PageIndex{0}, PageIndex{1}, PageIndex{3}}));
  EXPECT_EQ(pages.take(Access::read, 9, 7), PageIndex{2});
  EXPECT_EQ(pages.pid(PageIndex{2}), 9u);
  EXPECT_EQ(pages.access(PageIndex{2}), Access::read);
  EXPECT_EQ(pages.access(PageIndex{1}), Access::write);
}

TEST_F(PageTable, AHangUpKeepsThePageAndItsPins) {
  const PageIndex a = pages.take(Access::write, 1, 1).value();
  pin(a, 5, {SlotIndex{3}, Generation{8}});
  pages.disconnect(a);
  EXPECT_FALSE(pages.is_connected(a));
  EXPECT_TRUE(pages.is_taken(a));
  EXPECT_TRUE(pages.scan_pins().contains(SlotIndex{3}, Generation{8}));
  EXPECT_FALSE(pages.scan_pins().contains(SlotIndex{3}, Generation{7}));
}

TEST_F(PageTable, APageIsFreeOnceMappingAndConnectionAreBothGoneInWhateverOrder) {
  const PageIndex a = pages.take(Access::write, 1, 1).value();
  pin(a, 0, {SlotIndex{3}, Generation{8}});
  pages.end_claims(a);
  EXPECT_FALSE(pages.scan_pins().contains(SlotIndex{3}, Generation{8}));
  EXPECT_FALSE(pages.has_claims(a));
  EXPECT_TRUE(pages.is_taken(a));  // a forked child holds its socket
  pages.disconnect(a);
  EXPECT_FALSE(pages.is_taken(a));

  ASSERT_EQ(pages.take(Access::write, 2, 2), a);
  EXPECT_TRUE(pages.has_claims(a));
  pages.disconnect(a);
  EXPECT_TRUE(pages.is_taken(a));
  pages.end_claims(a);
  EXPECT_FALSE(pages.is_taken(a));
  EXPECT_EQ(pages.taken_count(), 0u);
}

TEST_F(PageTable, AFreePagesPinsCountAsNoneAndAreZeroForTheNext) {
  const PageIndex a = pages.take(Access::write, 1, 1).value();
  const auto pinned = [&] {
    const core::PinSet pins = pages.scan_pins();
    std::uint32_t count = 0;
    for (std::uint32_t i = 0; i < kPinsPerPage; ++i) {
      count += pins.contains(SlotIndex{i % 8}, Generation{i}) ? 1 : 0;
    }
    return count;
  };
  for (std::uint32_t i = 0; i < kPinsPerPage; ++i) pin(a, i, {SlotIndex{i % 8}, Generation{i}});
  EXPECT_EQ(pinned(), kPinsPerPage);
  page(a).high_water = 3;  // whatever its client has left there
  free(a);
  EXPECT_EQ(pinned(), 0u);
  page(a).high_water = 7;  // others map the file too
  page(a).pins[5] = 5;
  ASSERT_EQ(pages.take(Access::write, 2, 2), a);
  EXPECT_EQ(page(a).high_water.load(), 0u);
  for (const auto& word : page(a).pins) EXPECT_EQ(word.load(), 0u);
  page(a).high_water = kPinsPerPage;
  EXPECT_EQ(pinned(), 0u);
}

TEST_F(PageTable, AWildHighWaterMarkAndWildPinsHideNobodyElsesPins) {
  const PageIndex a = pages.take(Access::write, 1, 1).value();
  const PageIndex b = pages.take(Access::write, 2, 1).value();
  pin(b, 0, {SlotIndex{1}, Generation{1}});
  page(a).high_water = ~std::uint32_t{0};
  for (std::uint32_t i = 0; i < kPinsPerPage; ++i) page(a).pins[i] = ~std::uint64_t{0} - i;
  EXPECT_TRUE(pages.scan_pins().contains(SlotIndex{1}, Generation{1}));
  free(a);
  EXPECT_TRUE(pages.scan_pins().contains(SlotIndex{1}, Generation{1}));
}

TEST_F(PageTable, PinsAtOrAboveTheHighWaterMarkAreNotRead) {
  const PageIndex a = pages.take(Access::write, 1, 1).value();
  pin(a, 0, {SlotIndex{1}, Generation{1}});
  page(a).pins[1] = PinWord{SlotIndex{2}, Generation{2}}.bits();
  EXPECT_TRUE(pages.scan_pins().contains(SlotIndex{1}, Generation{1}));
  EXPECT_FALSE(pages.scan_pins().contains(SlotIndex{2}, Generation{2}));
}

TEST_F(PageTable, RebuiltItHasTheSamePagesAndNobodyIsConnected) {
  (void)pages.take(Access::read, 11, 1);
  (void)pages.take(Access::write, 12, 2);
  (void)pages.take(Access::write, 13, 3);
  free(PageIndex{1});
  core::PageTable rebuilt(tables, gate);
  rebuilt.rebuild();
  EXPECT_EQ(rebuilt.taken(), (std::vector{PageIndex{0}, PageIndex{2}}));
  EXPECT_EQ(rebuilt.taken_count(), 2u);
  EXPECT_FALSE(rebuilt.is_connected(PageIndex{0}));
  EXPECT_EQ(rebuilt.access(PageIndex{0}), Access::read);
  EXPECT_EQ(rebuilt.pid(PageIndex{2}), 13u);
  EXPECT_EQ(rebuilt.take(Access::write, 14, 4), PageIndex{1});
}

TEST_F(PageTable, AnAccessThatIsNoneMeansReadOnly) {
  (void)pages.take(Access::write, 1, 1);
  tables.page_record(PageIndex{0}).access = 77;
  EXPECT_EQ(pages.access(PageIndex{0}), Access::read);
}

}  // namespace
}  // namespace hotkv::test
