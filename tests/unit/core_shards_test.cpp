// Shards and clients of the core: bounds, what may be dropped, clients that come and go.

#include <gtest/gtest.h>

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

}  // namespace
}  // namespace hotkv::test
