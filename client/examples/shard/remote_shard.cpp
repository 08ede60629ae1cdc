#include "client/examples/shard/remote_shard.hpp"

namespace hotkv::shard {

using adapter::ShardInput;
using adapter::ShardResult;

std::vector<ShardResult> RemoteShard::run(std::span<const ShardInput> batch) {
  const auto all = [&](const Refusal& refusal) {
    return std::vector<ShardResult>(batch.size(), std::unexpected(adapter::ShardRefusal(refusal)));
  };
  const auto reply = client_.exchange(
      encode(ForwardMessage{model_id_, first_layer_, {batch.begin(), batch.end()}}),
      kExchangeDeadline);
  if (!reply) return all(reply.error());
  auto results = decode_outputs(*reply);
  if (!results) return all(results.error());
  if (results->size() != batch.size()) {
    return all(Error{ErrorCode::protocol_error, "run step", "the next shard",
                     std::to_string(results->size()) + " results for " +
                         std::to_string(batch.size()) + " sequences"});
  }
  return std::move(*results);
}

std::expected<void, Refusal> RemoteShard::give_back(std::span<const ContextKey> keys) {
  const auto reply =
      client_.exchange(encode(GiveBackMessage{{keys.begin(), keys.end()}}), kExchangeDeadline);
  if (!reply) return std::unexpected(Refusal(reply.error()));
  return decode_done(*reply);
}

std::expected<std::vector<ShardIdentity>, Refusal> RemoteShard::who() {
  const auto reply = client_.exchange(encode(WhoMessage{}), kExchangeDeadline);
  if (!reply) return std::unexpected(Refusal(reply.error()));
  return decode_chain(*reply);
}

}  // namespace hotkv::shard
