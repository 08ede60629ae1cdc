#pragma once
// What routers and shards say to one another: CBOR maps, one a frame.

#include <cstdint>
#include <expected>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "client/adapter/head_driver.hpp"
#include "client/adapter/pipeline.hpp"

namespace hotkv::shard {

// Who is there: a shard and all behind it, the asked one first.
struct ShardIdentity {
  std::uint64_t pid = 0;
  LayerRange layers{};
};

// To the head: bring these sequences one token further.
struct AdvanceMessage {
  std::string model_id;
  std::vector<adapter::AdvanceRequest> batch;
};
// To every other shard: run your layers over this. `first_layer` is the one after the sender's
// last.
struct ForwardMessage {
  std::string model_id;
  std::uint32_t first_layer = 0;
  std::vector<adapter::ShardInput> batch;
};
struct GiveBackMessage {
  std::vector<ContextKey> keys;
};
struct WhoMessage {};

using Request = std::variant<AdvanceMessage, ForwardMessage, GiveBackMessage, WhoMessage>;

[[nodiscard]] std::string encode(const Request& request);
// Errors: protocol_error saying what is not as it should be.
[[nodiscard]] std::expected<Request, Error> decode_request(std::string_view bytes);

// Replies. Each answers one kind of request; a Refusal answers any as a whole: also a message of
// which one sequence is malformed.
[[nodiscard]] std::string encode(const Refusal& refusal);
[[nodiscard]] std::string encode(const std::vector<adapter::Advance>& results);
[[nodiscard]] std::string encode(const std::vector<adapter::ShardResult>& results);
[[nodiscard]] std::string encode(const std::vector<ShardIdentity>& chain);
[[nodiscard]] std::string encode_done();

// The failure is the reply's as a whole, or protocol_error.
[[nodiscard]] std::expected<std::vector<adapter::Advance>, Refusal> decode_advances(
    std::string_view bytes);
[[nodiscard]] std::expected<std::vector<adapter::ShardResult>, Refusal> decode_outputs(
    std::string_view bytes);
[[nodiscard]] std::expected<std::vector<ShardIdentity>, Refusal> decode_chain(
    std::string_view bytes);
[[nodiscard]] std::expected<void, Refusal> decode_done(std::string_view bytes);

}  // namespace hotkv::shard
