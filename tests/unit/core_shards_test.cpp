// Shards and clients of the core: bounds, what may be dropped, clients that come and go.

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <string>
#include <vector>

#include "daemon/core/core.hpp"
#include "tests/support/core_harness.hpp"

namespace hotkv::test {
namespace {

core::Limits few_shards() {
  auto limits = CoreHarness::small_limits();
  limits.max_shards = 3;
  limits.max_shards_per_owner = 2;
  return limits;
}

Recipe model(int number) {
  return small_recipe({0, 1}, "model " + std::to_string(number));
}

TEST(CoreShards, AnOwnerAndTheDaemonHaveAtMostSoManyInUse) {
  CoreHarness h(few_shards());
  CoreClient a(h, h.add_shard(model(1), 1));
  CoreClient b(h, h.add_shard(model(2), 1));
  const auto third = h.core->plan_shard(1, model(3));
  ASSERT_FALSE(third.has_value());
  EXPECT_EQ(third.error().code, ErrorCode::too_many_shards);
  EXPECT_NE(third.error().message().find("uid 1 has 2 shards"), std::string::npos);
  CoreClient c(h, h.add_shard(model(1), 2));
  const auto fourth = h.core->plan_shard(3, model(1));
  ASSERT_FALSE(fourth.has_value());
  EXPECT_EQ(fourth.error().code, ErrorCode::too_many_shards);
  EXPECT_TRUE(h.core->take_dropped_shards().empty());
}

TEST(CoreShards, AnEmptyShardOfTheOwnerMakesRoomForItsNext) {
  CoreHarness h(few_shards());
  const auto first = h.add_shard(model(1), 1);
  CoreClient b(h, h.add_shard(model(2), 1));
  const auto others = h.add_shard(model(1), 2);
  ASSERT_TRUE(h.core->plan_shard(1, model(3)).has_value());
  EXPECT_EQ(h.core->take_dropped_shards(), (std::vector{first}));
  EXPECT_TRUE(h.core->take_dropped_shards().empty());
  EXPECT_FALSE(h.core->find_shard({1, "model 1", {0, 1}}).has_value());
  EXPECT_TRUE(h.core->find_shard({2, "model 1", {0, 1}}) == others);
}

TEST(CoreShards, AShardWithAContextOrALivingClientIsNotDropped) {
  CoreHarness h(few_shards());
  CoreClient client(h, h.add_shard(model(1), 1));
  ASSERT_TRUE(client.open("a", 1));
  client.die();
  CoreClient hung_up(h, h.add_shard(model(2), 1));
  hung_up.hang_up();
  EXPECT_FALSE(h.core->plan_shard(1, model(3)).has_value());
  h.liveness.gone.insert(hung_up.client);
  EXPECT_TRUE(h.core->plan_shard(1, model(3)).has_value());
  EXPECT_EQ(h.core->take_dropped_shards(), (std::vector{hung_up.client.shard}));
  EXPECT_EQ(h.core->verify(), std::nullopt);
}

TEST(CoreShards, AShardWithMemoryInTransitIsNotDropped) {
  CoreHarness h(few_shards());
  CoreClient client(h, h.add_shard(model(1), 1));
  const auto opened = client.open("a", 1).value();
  ASSERT_TRUE(std::holds_alternative<core::Waiting>(
      h.core->append(client.client, id("a"), Epoch{1}, opened.generation, TokenCount{5})));
  ASSERT_TRUE(client.release("a", 1));
  client.die();
  CoreClient other(h, h.add_shard(model(2), 1));
  EXPECT_FALSE(h.core->plan_shard(1, model(3)).has_value());
  h.settle();
  EXPECT_TRUE(h.core->plan_shard(1, model(3)).has_value());
  EXPECT_EQ(h.core->status().account.provisioned, 0u);
}

TEST(CoreShards, ADroppedShardsMemoryIsBudgetForOthers) {
  auto limits = few_shards();
  limits.max_bytes = 4 * 4096;
  CoreHarness h(limits);
  CoreClient client(h, h.add_shard(model(1), 1));
  ASSERT_TRUE(client.open("a", 1));
  ASSERT_TRUE(client.grant("a", 1, 64));
  ASSERT_TRUE(client.release("a", 1));
  client.die();
  CoreClient b(h, h.add_shard(model(2), 1));
  CoreClient c(h, h.add_shard(model(3), 1));
  EXPECT_EQ(h.core->status().account.provisioned, 0u);
  ASSERT_TRUE(c.open("a", 1));
  EXPECT_TRUE(c.grant("a", 1, 64));
}

TEST(CoreShards, ABudgetThatHoldsNotOneExtentIsAnInvalidArgument) {
  auto limits = CoreHarness::small_limits();
  limits.max_bytes = 1000;
  CoreHarness h(limits);
  const auto plan = h.core->plan_shard(1, small_recipe());
  ASSERT_FALSE(plan.has_value());
  EXPECT_EQ(plan.error().code, ErrorCode::invalid_argument);
}

TEST(CoreShards, MoreClientsThanPagesAreRefusedUntilOneIsGone) {
  CoreHarness h;
  const auto shard = h.add_shard();
  std::vector<CoreClient> clients;
  for (std::uint32_t i = 0; i < h.limits.clients_per_shard; ++i) clients.emplace_back(h, shard);
  const auto refused = h.core->attach(shard, Access::read, 1, 1);
  ASSERT_FALSE(refused.has_value());
  EXPECT_EQ(refused.error().code, ErrorCode::too_many_clients);
  clients[2].hang_up();  // lives on
  EXPECT_FALSE(h.core->attach(shard, Access::read, 1, 1).has_value());
  h.liveness.gone.insert(clients[2].client);
  const auto taken = h.core->attach(shard, Access::read, 1, 77);
  ASSERT_TRUE(taken.has_value());
  EXPECT_EQ(taken->client.page, clients[2].client.page);
  EXPECT_EQ(taken->cookie, 77u);
  EXPECT_EQ(h.core->access_of(taken->client), Access::read);
}

TEST(CoreShards, AShardNeverSeesAnotherOnesSessions) {
  CoreHarness h;
  CoreClient a(h, h.add_shard(small_recipe({0, 1}), 1));
  CoreClient b(h, h.add_shard(small_recipe({0, 1}), 2));
  CoreClient c(h, h.add_shard(small_recipe({2, 3}), 1));
  ASSERT_TRUE(a.open("s", 5));
  ASSERT_TRUE(a.append("s", 5, 40));
  EXPECT_TRUE(b.resolve("s", 5, 40).error().is(MissReason::unknown_session));
  EXPECT_TRUE(c.resolve("s", 5, 40).error().is(MissReason::unknown_session));
  ASSERT_TRUE(b.open("s", 1));  // and a stale epoch there is none here
  ASSERT_TRUE(b.release("s", 1));
  EXPECT_TRUE(a.resolve("s", 5, 40).has_value());
}

// FR-095: names that read alike when they are joined are apart.
TEST(CoreShards, NamesThatJoinToTheSameTextAreContextsOfTheirOwn) {
  struct Name {
    std::uint32_t owner_uid;
    const char* model;
    const char* session;
  };
  constexpr Name kNames[]{{1, "x", "y/z"},  {1, "x/y", "z"},  {1, "x/y/z", "x"}, {1, "x", "xy/z"},
                          {11, "x", "y/z"}, {1, "1x", "y/z"}, {1, "xy", "/z"},   {1, "x", "y/z/"}};
  CoreHarness h;
  std::vector<CoreClient> clients;
  std::uint32_t length = 0;
  for (const Name& name : kNames) {
    const Recipe recipe = small_recipe({0, 1}, name.model);
    const auto known = h.core->find_shard({name.owner_uid, name.model, {0, 1}});
    clients.emplace_back(h, known ? *known : h.add_shard(recipe, name.owner_uid));
    ASSERT_EQ(clients.back().open(name.session, 1)->length, TokenCount{0});
    ASSERT_TRUE(clients.back().append(name.session, 1, ++length));
  }
  for (std::size_t i = 0; i < std::size(kNames); ++i) {
    const auto view = clients[i].resolve(kNames[i].session, 1, static_cast<std::uint32_t>(i + 1));
    ASSERT_TRUE(view.has_value()) << i;
    EXPECT_EQ(clients[i].wrong_bytes(kNames[i].session, 1, *view), 0u) << i;
  }
}

TEST(CoreShards, ATickExpiresOfEachShardAndSparesThePinned) {
  CoreHarness h;
  CoreClient a(h, h.add_shard(model(1), 1));
  CoreClient b(h, h.add_shard(model(2), 1));
  for (CoreClient* client : {&a, &b}) {
    ASSERT_TRUE(client->open("x", 1));
    ASSERT_TRUE(client->open("pinned", 1));
  }
  const auto view = b.resolve("pinned", 1, 0).value();
  h.now_ms += h.limits.ttl_ms;
  h.core->tick();
  ASSERT_EQ(h.core->contexts().size(), 1u);
  EXPECT_EQ(h.core->contexts().at(0).shard, b.client.shard);
  EXPECT_TRUE(h.core->contexts().at(0).pinned);
  b.unpin(view);
  h.now_ms += h.limits.ttl_ms - 1;  // its time begins where it was last seen pinned
  h.core->tick();
  EXPECT_EQ(h.core->contexts().size(), 1u);
  h.now_ms += 1;
  h.core->tick();
  EXPECT_TRUE(h.core->contexts().empty());
}

TEST(CoreShards, WithoutATimeToLiveNothingExpires) {
  auto limits = CoreHarness::small_limits();
  limits.ttl_ms = 0;
  CoreHarness h(limits);
  CoreClient client(h, h.add_shard());
  ASSERT_TRUE(client.open("a", 1));
  h.now_ms += std::uint64_t{1} << 40;
  h.core->tick();
  EXPECT_EQ(h.core->contexts().size(), 1u);
}

TEST(CoreShards, AClientThatIsGoneWhileItsConnectionStandsIsNamedOnce) {
  CoreHarness h;
  const auto shard = h.add_shard();
  CoreClient execed(h, shard);
  CoreClient next(h, shard);
  const auto opened = execed.open("a", 1).value();
  ASSERT_TRUE(execed.append("a", 1, 5));
  (void)execed.resolve("a", 1, 5).value();
  h.liveness.gone.insert(execed.client);
  EXPECT_EQ(next.open("a", 1)->generation, opened.generation);
  EXPECT_EQ(h.core->take_gone_clients(), (std::vector{execed.client}));
  h.core->tick();
  EXPECT_TRUE(h.core->take_gone_clients().empty());
  EXPECT_FALSE(h.core->contexts().at(0).pinned);
  h.core->disconnected(execed.client);
  EXPECT_EQ(h.core->status().shards.at(0).clients, 1u);
  EXPECT_EQ(h.core->verify(), std::nullopt);
}

// Whoever holds the socket of a client whose mapping is gone can still send.
TEST(CoreShards, AClientWhoseMappingIsGoneGetsNoLease) {
  CoreHarness h;
  const auto shard = h.add_shard();
  CoreClient execed(h, shard);
  ASSERT_TRUE(execed.open("before", 1));
  h.liveness.gone.insert(execed.client);
  h.core->tick();
  const auto refused = execed.open("a", 1);
  ASSERT_FALSE(refused.has_value());
  EXPECT_TRUE(refused.error().is(ErrorCode::not_attached));
  EXPECT_FALSE(execed.open("before", 1).has_value());
  h.core->disconnected(execed.client);
  EXPECT_EQ(h.core->verify(), std::nullopt);
  for (const auto& context : h.core->contexts()) EXPECT_EQ(context.holder, std::nullopt);
}

// One client, one message: it pins every context, unmaps its page, and opens one more. The search
// for a victim ends the client's own claims, and then it is no holder of anything.
TEST(CoreShards, AClientThatUnmapsItsPageAndOpensIsNoHolder) {
  CoreHarness h;
  const auto shard = h.add_shard();
  CoreClient client(h, shard);
  for (std::uint32_t i = 0; i < h.limits.session_cap; ++i) {
    ASSERT_TRUE(client.open("s" + std::to_string(i), 1));
    (void)client.resolve("s" + std::to_string(i), 1, 0).value();
  }
  h.liveness.gone.insert(client.client);
  (void)client.open("new", 1);
  EXPECT_EQ(h.core->verify(), std::nullopt);
  for (const auto gone : h.core->take_gone_clients()) h.core->disconnected(gone);
  EXPECT_EQ(h.core->verify(), std::nullopt);
  for (const auto& context : h.core->contexts()) EXPECT_EQ(context.holder, std::nullopt);
}

// FR-008: so many leases that ending all in one turn would keep everybody else waiting.
class CoreLeasesOfTheGone : public ::testing::Test {
 protected:
  static constexpr std::uint32_t kLeases = 2000;

  static core::Limits limits() {
    auto limits = CoreHarness::small_limits();
    limits.session_cap = kLeases + 8;
    return limits;
  }
  CoreLeasesOfTheGone() {
    for (std::uint32_t i = 0; i < kLeases; ++i) (void)gone_.open("s" + std::to_string(i), 1);
    (void)gone_.append("s7", 1, 5);
    (void)gone_.resolve("s7", 1, 5);
    // As much as is unlikely to be among the first that end.
    for (std::uint32_t i = 8; i < 48; ++i) (void)gone_.grant("s" + std::to_string(i), 1, 16);
    cookie_ = h_.tables(shard_).page_record(gone_.client.page).cookie;
    h_.liveness.gone.insert(gone_.client);
    h_.core->disconnected(gone_.client);
  }
  [[nodiscard]] std::size_t leased() const {
    return static_cast<std::size_t>(std::ranges::count_if(
        h_.core->contexts(),
        [](const core::ContextInfo& context) { return context.holder.has_value(); }));
  }

  CoreHarness h_{limits()};
  core::ShardId shard_ = h_.add_shard();
  CoreClient gone_{h_, shard_};
  CoreClient next_{h_, shard_};
  std::uint64_t cookie_ = 0;
};

TEST_F(CoreLeasesOfTheGone, EndInPiecesAndThenThePageIsFree) {
  ASSERT_EQ(h_.core->contexts().size(), kLeases);
  int turns = 1;
  for (std::size_t before = kLeases; h_.core->has_leases_to_end(); ++turns) {
    EXPECT_LT(leased(), before);
    EXPECT_GT(leased(), 0U);
    EXPECT_EQ(h_.core->status().shards.at(0).clients, 2U);
    EXPECT_EQ(h_.core->verify(), std::nullopt);
    before = leased();
    h_.core->end_some_leases();
    ASSERT_LT(turns, static_cast<int>(kLeases));
  }
  EXPECT_GT(turns, 2);
  EXPECT_EQ(leased(), 0U);
  EXPECT_EQ(h_.core->status().shards.at(0).clients, 1U);
}

TEST_F(CoreLeasesOfTheGone, AreFreeForWhoeverWantsOneBeforeItsTurn) {
  std::size_t ended = 0;
  for (std::uint32_t i = 0; i < kLeases; ++i) {
    const std::size_t before = leased();
    ASSERT_TRUE(next_.open("s" + std::to_string(i), 1)) << i;
    ended += leased() == before + 1;  // it was nobody's: its turn was before
    EXPECT_LE(leased(), before + 1);
    EXPECT_GE(leased(), before);  // and no other's ends for it
  }
  EXPECT_GT(ended, 0U);
  EXPECT_LT(ended, kLeases / 2);
  EXPECT_EQ(leased(), kLeases);
  EXPECT_FALSE(h_.core->has_leases_to_end());
  EXPECT_EQ(h_.core->verify(), std::nullopt);
}

// The page can have its next client once the last piece is done, and never before.
TEST_F(CoreLeasesOfTheGone, AreNeverThoseOfTheNextClientOfThePage) {
  h_.core->tick();  // finds it gone once more
  ASSERT_TRUE(h_.core->has_leases_to_end());
  CoreClient other_page(h_, shard_);
  EXPECT_NE(other_page.client, gone_.client);
  for (std::size_t turn = 0; turn < kLeases && h_.core->has_leases_to_end(); ++turn)
    h_.core->end_some_leases();
  ASSERT_FALSE(h_.core->has_leases_to_end());
  h_.liveness.gone.clear();
  CoreClient same_page(h_, shard_);
  ASSERT_EQ(same_page.client, gone_.client);
  ASSERT_TRUE(same_page.open("s0", 1));
  h_.core->end_some_leases();
  h_.core->tick();
  EXPECT_EQ(leased(), 1U);
}

// What it pinned is over at once: its mapping is what made pins count.
TEST_F(CoreLeasesOfTheGone, HoldNoPinsMeanwhile) {
  ASSERT_TRUE(h_.core->has_leases_to_end());
  EXPECT_EQ(std::ranges::count_if(h_.core->contexts(),
                                  [](const core::ContextInfo& context) { return context.pinned; }),
            0);
}

// Its mapping may come back, if it is hostile; its client may not.
TEST_F(CoreLeasesOfTheGone, DoNotComeBackWithTheirClient) {
  ASSERT_TRUE(h_.core->has_leases_to_end());
  h_.liveness.gone.clear();
  EXPECT_FALSE(h_.core->come_back(gone_.client, Access::write, cookie_).has_value());
}

// Who needs memory ends what the gone were granted and never published, however much is left.
TEST_F(CoreLeasesOfTheGone, GiveTheirGrantsToWhoeverNeedsThem) {
  ASSERT_GT(h_.core->status().account.used, 0U);
  ASSERT_TRUE(next_.open("needs all", 1));
  const auto chunks = h_.limits.max_bytes / 4096;
  EXPECT_TRUE(next_.append("needs all", 1, static_cast<std::uint32_t>(chunks) * 16).has_value());
  EXPECT_EQ(h_.core->verify(), std::nullopt);
}

}  // namespace
}  // namespace hotkv::test
