// Right frames in every order, and every refusal that a client can reach.

#include <gtest/gtest.h>

#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "tests/hostile/conversation.hpp"
#include "tests/support/under_fire.hpp"

namespace hotkv::testing {
namespace {

using namespace protocol;

class MessageOrders : public UnderFire {};

// What a frame's own status must be, whatever came before it.
class ExpectedStatus {
 public:
  ErrorCode next(Type type) {
    if (type == Type::hello) {
      return std::exchange(greeted_, true) ? ErrorCode::protocol_error : ErrorCode{};
    }
    if (!greeted_) return ErrorCode::protocol_error;
    if (type == Type::attach) {
      return std::exchange(attached_, true) ? ErrorCode::already_attached : ErrorCode{};
    }
    return attached_ ? ErrorCode{} : ErrorCode::not_attached;
  }

 private:
  bool greeted_ = false;
  bool attached_ = false;
};

// FR-080: senseless orders end nothing. Every sequence of four messages, each on a connection of
// its own, has one right answer to each.
TEST_F(MessageOrders, EveryOrderOfFourMessagesIsAnsweredAsItsStateSays) {
  constexpr std::size_t kMessages = 4;
  const std::size_t types = kConversation.size();
  std::vector<Bytes> frames;
  for (const Type type : kConversation) {
    frames.push_back(right_frame(type, small_recipe(), "session", 1));
  }
  const RawClient witness = attached_client(daemon_.control_path());
  std::size_t orders = 1;
  for (std::size_t message = 0; message < kMessages; ++message) orders *= types;
  for (std::size_t order = 0; order < orders; ++order) {
    RawClient client(daemon_.control_path());
    ExpectedStatus expected;
    std::size_t rest = order;
    for (std::size_t message = 0; message < kMessages; ++message, rest /= types) {
      const Type type = kConversation[rest % types];
      const ErrorCode code = expected.next(type);
      const RawReply reply = client.ask(frames[rest % types]);
      ASSERT_EQ(reply.header.type, static_cast<std::uint16_t>(type)) << order;
      ASSERT_EQ(reply.header.status, static_cast<std::uint32_t>(code)) << order << reply.text;
      if (type == Type::attach && code == ErrorCode{}) client.stay_alive(reply);
    }
  }
  EXPECT_TRUE(eventually([&] { return shard_status(daemon_, "model-a").at("clients") == 1; }));
}

// ---- refusals -----------------------------------------------------------------------------------

class Refusals : public UnderFire {
 protected:
  Refusals()
      : UnderFire(
            {.flags = {"--max-bytes=16M", "--hugepages=off", "--chunk-tokens=16", "--session-cap=4",
                       "--clients-per-shard=3", "--max-shards=2", "--max-connections=16"}}) {}
};

TEST_F(Refusals, OfOperationsSayWhyAndAreCounted) {
  RawClient holder = attached_client(daemon_.control_path());
  RawClient other = attached_client(daemon_.control_path());
  const std::uint32_t generation = holder.open("session", 5).generation;
  OpenOperation foreign{context_name("session", 5), {}};  // a fingerprint that is nobody's
  struct Refused {
    ErrorCode code;
    RawReply reply;
    std::string text;
  };
  const auto ask = [](RawClient& client, auto operation, Type type) {
    return client.ask(make_frame<decltype(operation)>(type, 1, {operation}));
  };
  const auto name = context_name("session", 5);
  OpenOperation open{name, {}};
  std::ranges::copy(small_recipe().fingerprint(), open.fingerprint);
  OpenOperation stale = open;
  stale.context.epoch = 4;
  const Refused all[]{
      {ErrorCode::incompatible_recipe, ask(other, foreign, Type::open), "kv_heads=2"},
      {ErrorCode::session_busy, ask(other, open, Type::open), "pid "},
      {ErrorCode::stale_epoch, ask(other, stale, Type::open), "epoch 5 has been seen, got 4"},
      {ErrorCode::lease_lost, ask(holder, AppendOperation{name, generation + 1, 20}, Type::append),
       "generation 2 is over, it is 1"},
      {ErrorCode::length_mismatch,
       ask(holder, TruncateOperation{name, generation, 3, 2, 0}, Type::truncate),
       "to 2 from 3, published are 0 tokens"},
      {ErrorCode::invalid_argument,
       ask(holder, TruncateOperation{name, generation, 0, 2, 0}, Type::truncate),
       "published are 0"},
      {ErrorCode::budget_exceeded,
       ask(holder, AppendOperation{name, generation, 10'000'000}, Type::append),
       "budget 16777216"}};
  for (const auto& [code, reply, text] : all) {
    ASSERT_EQ(reply.results().size(), 1U) << to_string(code);
    EXPECT_TRUE(is_error(reply.results().front(), code)) << to_string(code) << reply.text;
    EXPECT_NE(reply.text.find(text), std::string::npos) << reply.text;
    EXPECT_EQ(refusals(daemon_, std::string(to_string(code))), 1U) << to_string(code);
  }
}

TEST_F(Refusals, OfWhatIsFullSayHowMuchThereIsAndAreCounted) {
  const auto refused = [&](const std::string& code) {
    return status_number(daemon_, "/server/frames_refused/" + code);
  };
  // The honest worker's shard is the other one.
  std::vector<RawClient> clients;
  for (int count = 0; count < 3; ++count)
    clients.push_back(attached_client(daemon_.control_path()));
  RawClient one_more(daemon_.control_path());
  ASSERT_EQ(one_more.hello().header.status, 0U);
  const RawReply no_page = one_more.attach(small_recipe(), Access::read);
  EXPECT_TRUE(no_page.is_error(ErrorCode::too_many_clients));
  EXPECT_NE(no_page.text.find("all 3 pages are taken"), std::string::npos) << no_page.text;
  EXPECT_EQ(refused("too-many-clients"), 1U);
  const RawReply no_shard = one_more.attach(small_recipe("model-b"), Access::write);
  EXPECT_TRUE(no_shard.is_error(ErrorCode::too_many_shards));
  EXPECT_NE(no_shard.text.find("2"), std::string::npos) << no_shard.text;
  EXPECT_EQ(refused("too-many-shards"), 1U);

  std::vector<RawClient> crowd;
  for (int count = 0; count < 20; ++count) crowd.emplace_back(daemon_.control_path());
  const auto told = crowd.back().receive();
  ASSERT_TRUE(told.has_value());
  EXPECT_TRUE(told->is_error(ErrorCode::too_many_connections));
  EXPECT_NE(told->text.find("connections"), std::string::npos) << told->text;
  EXPECT_GE(status_number(daemon_, "/server/connections_refused"), 5U);
  EXPECT_TRUE(eventually([&] { return log_lines("event=connection-refused") > 0; }));
  // As soon as there is room, it is taken.
  crowd.clear();
  clients.pop_back();
  EXPECT_TRUE(
      eventually([&] { return one_more.attach(small_recipe(), Access::read).header.status == 0; }));
}

}  // namespace
}  // namespace hotkv::testing
