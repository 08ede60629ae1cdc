#include "client/examples/shard/message.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdlib>
#include <nlohmann/json.hpp>
#include <random>
#include <string>

#include "tests/support/tiny_llama.hpp"

namespace hotkv::shard {
namespace {

using adapter::Advance;
using adapter::SamplingContract;
using adapter::ShardOutput;
using adapter::ShardRefusal;
using adapter::ShardResult;
using nlohmann::json;
using ::testing::HasSubstr;
using testing::key_of;

CacheMiss some_miss() {
  return {.session = SessionId::from("s").value(),
          .epoch = Epoch{3},
          .expected_length = TokenCount{7},
          .reason = MissReason::evicted_lru,
          .known_epoch = Epoch{3},
          .known_length = TokenCount{5},
          .age_ms = 12,
          .cause = std::nullopt};
}

std::string cbor(const json& value) {
  const auto bytes = json::to_cbor(value);
  return {bytes.begin(), bytes.end()};
}

template <class Message>
Message there_and_back(const Message& message) {
  auto decoded = decode_request(encode(Request(message)));
  EXPECT_TRUE(decoded) << decoded.error().message();
  return std::get<Message>(*decoded);
}

TEST(ShardMessage, RequestsComeBackEqual) {
  const std::string odd_name("\0\xff\"", 3);
  const AdvanceMessage advance = there_and_back(
      AdvanceMessage{"model", {{key_of(odd_name, ~0ull), {1, 511}, TokenCount{1}, true}}});
  EXPECT_EQ(advance.model_id, "model");
  ASSERT_EQ(advance.batch.size(), 1u);
  EXPECT_EQ(advance.batch[0].key.session.bytes(), odd_name);
  EXPECT_EQ(advance.batch[0].key.epoch, Epoch{~0ull});
  EXPECT_EQ(advance.batch[0].tokens, (std::vector<adapter::TokenId>{1, 511}));
  EXPECT_EQ(advance.batch[0].expected, TokenCount{1});
  EXPECT_TRUE(advance.batch[0].is_sole);

  const ForwardMessage forward = there_and_back(ForwardMessage{
      "model",
      3,
      {{key_of("a"), TokenCount{16}, {}, {1.5f, -0.0f, NAN}, SamplingContract::greedy()},
       {key_of("b"), TokenCount{0}, {}, {}, {}}}});
  EXPECT_EQ(forward.first_layer, 3u);
  ASSERT_EQ(forward.batch.size(), 2u);
  EXPECT_EQ(forward.batch[0].position, TokenCount{16});
  EXPECT_EQ(forward.batch[0].residual[0], 1.5f);
  EXPECT_TRUE(std::signbit(forward.batch[0].residual[1]) &&
              std::isnan(forward.batch[0].residual[2]));
  EXPECT_TRUE(forward.batch[0].sampling);
  EXPECT_FALSE(forward.batch[1].sampling);

  EXPECT_EQ(there_and_back(GiveBackMessage{{key_of("a"), key_of("b")}}).keys.size(), 2u);
  there_and_back(WhoMessage{});
}

TEST(ShardMessage, RepliesComeBackEqual) {
  const Error error{ErrorCode::session_busy, "open", "\"s\"\xff", "pid 7 holds it", 11};
  std::vector<Advance> advances(2);
  advances[0] = {.token = 9,
                 .refusal = {},
                 .cached = TokenCount{4},
                 .reused = TokenCount{3},
                 .recomputed = TokenCount{1},
                 .why = some_miss()};
  advances[1].refusal = error;
  advances[1].cached = TokenCount{2};
  const auto decoded = decode_advances(encode(advances)).value();
  ASSERT_EQ(decoded.size(), 2u);
  EXPECT_EQ(decoded[0].token, 9u);
  EXPECT_EQ(decoded[0].cached, TokenCount{4});
  EXPECT_EQ(decoded[0].reused, TokenCount{3});
  EXPECT_EQ(decoded[0].recomputed, TokenCount{1});
  EXPECT_EQ(decoded[0].why, some_miss());
  EXPECT_FALSE(decoded[1].token);
  EXPECT_EQ(decoded[1].refusal->message(), Refusal(error).message());
  EXPECT_EQ(decoded[1].cached, TokenCount{2});

  const std::vector<ShardResult> results{ShardOutput{{1, 2}, {}}, ShardOutput{{}, 5},
                                         std::unexpected(ShardRefusal(some_miss()))};
  const auto outputs = decode_outputs(encode(results)).value();
  ASSERT_EQ(outputs.size(), 3u);
  EXPECT_EQ(outputs[0]->residual, (std::vector<float>{1, 2}));
  EXPECT_EQ(outputs[1]->token, 5u);
  EXPECT_EQ(outputs[2].error().miss(), some_miss());

  const std::vector<ShardIdentity> shards{{12, {0, 2}}, {13, {3, 4}}};
  const auto chain = decode_chain(encode(shards)).value();
  ASSERT_EQ(chain.size(), 2u);
  EXPECT_EQ(chain[1].pid, 13u);
  EXPECT_EQ(chain[1].layers, (LayerRange{3, 4}));
  EXPECT_TRUE(decode_done(encode_done()));
}

TEST(ShardMessage, ARefusalAnswersAnyRequestAsAWhole) {
  const std::string refused = encode(Refusal(some_miss()));
  EXPECT_EQ(decode_advances(refused).error().miss(), some_miss());
  EXPECT_EQ(decode_outputs(refused).error().miss(), some_miss());
  EXPECT_EQ(decode_chain(refused).error().miss(), some_miss());
  EXPECT_EQ(decode_done(refused).error().miss(), some_miss());
}

TEST(ShardMessage, WhatIsNoMessageIsRefusedWithTheReason) {
  const auto reason = [](const std::string& bytes) {
    const auto decoded = decode_request(bytes);
    if (decoded) return std::string("accepted");
    EXPECT_EQ(decoded.error().code, ErrorCode::protocol_error);
    return decoded.error().message();
  };
  json forward{{"ask", "forward"}, {"model", "m"}, {"first_layer", 1}, {"batch", json::array()}};
  EXPECT_EQ(reason(cbor(forward)), "accepted");
  const json key{{"session", json::binary({'s'})}, {"epoch", 1}};
  json sequence = key;
  sequence["position"] = 0;
  sequence["residual"] = json::binary({0, 0, 0, 0});
  const auto with = [&](const char* field, const json& value) {
    json spoiled = sequence;
    spoiled[field] = value;
    json message = forward;
    message["batch"].push_back(spoiled);
    return reason(cbor(message));
  };
  EXPECT_EQ(with("position", 0), "accepted");
  EXPECT_THAT(with("position", -1), HasSubstr("not a number that fits"));
  EXPECT_THAT(with("position", 4294967296), HasSubstr("not a number that fits"));
  EXPECT_THAT(with("position", true), HasSubstr("not a number that fits"));
  EXPECT_THAT(with("position", 1.5), HasSubstr("not a number that fits"));
  EXPECT_THAT(with("epoch", -1), HasSubstr("not a number that fits"));
  EXPECT_THAT(with("residual", json::binary({0, 0, 0})), HasSubstr("no whole f32"));
  EXPECT_NE(with("residual", "text"), "accepted");
  EXPECT_NE(with("session", json::binary({})), "accepted");
  EXPECT_NE(with("session", json::binary(std::vector<std::uint8_t>(129))), "accepted");
  EXPECT_THAT(with("sampling", "nucleus"), HasSubstr("not certified"));
  EXPECT_THAT(reason(cbor({{"ask", "sing"}})), HasSubstr("nobody knows how to \"sing\""));
  EXPECT_NE(reason(cbor({{"ask", "advance"}})), "accepted");
  EXPECT_NE(reason(cbor(json::array())), "accepted");
  EXPECT_NE(reason(""), "accepted");
  EXPECT_NE(reason("\xff"), "accepted");
  EXPECT_NE(reason(cbor(forward) + "x"), "accepted") << "something behind the message";
}

// Without a bound json's reader would use up the stack.
TEST(ShardMessage, DeepNestingIsRefused) {
  // Arrays, maps and strings, of definite and of indefinite length.
  for (const std::string item : {"\x81", "\x9f", "\xa1\x60", "\xbf\x60", "\x7f", "\x5f", "\xc0"}) {
    std::string bytes;
    while (bytes.size() < 1'000'000) bytes += item;
    bytes += '\0';  // the innermost item: nothing is wrong with it but its depth
    const auto decoded = decode_request(bytes);
    ASSERT_FALSE(decoded);
    EXPECT_EQ(decoded.error().code, ErrorCode::protocol_error);
    EXPECT_FALSE(decode_done(bytes));
  }
}

TEST(ShardMessage, EveryCutAndRandomDamageIsAnErrorOrAMessage) {
  const std::string good = encode(Request(ForwardMessage{
      "model", 3, {{key_of("a"), TokenCount{16}, {}, {1.5f}, SamplingContract::greedy()}}}));
  for (std::size_t size = 0; size < good.size(); ++size) {
    ASSERT_FALSE(decode_request(good.substr(0, size))) << size;
  }
  const char* const given = std::getenv("HOTKV_SEED");
  const std::uint64_t seed =
      given != nullptr ? std::strtoull(given, nullptr, 10) : std::random_device()();
  SCOPED_TRACE("HOTKV_SEED=" + std::to_string(seed));
  std::mt19937_64 random(seed);
  for (int i = 0; i < 20000; ++i) {
    std::string damaged = good;
    for (int hits = 0; hits < 1 + i % 4; ++hits) {
      damaged[random() % damaged.size()] = static_cast<char>(random());
    }
    if (const auto decoded = decode_request(damaged)) (void)encode(*decoded);
    (void)decode_outputs(damaged);
  }
}

}  // namespace
}  // namespace hotkv::shard
