#pragma once
// The shards behind a socket, as the shard in front sees them.
//
// Steps may be asked for twice (see FrameClient): run again, a step rolls back what it published
// and publishes the same.

#include <chrono>
#include <filesystem>
#include <string>
#include <utility>

#include "client/adapter/pipeline.hpp"
#include "client/examples/shard/frame_client.hpp"
#include "client/examples/shard/message.hpp"

namespace hotkv::shard {

// Every wait ends by this: a shard that is stopped must not stop those in front of it for good.
inline constexpr std::chrono::seconds kExchangeDeadline{20};

class RemoteShard final : public adapter::ShardLink {
 public:
  // `first_layer` is the one that must be behind the socket.
  RemoteShard(const std::filesystem::path& path, std::string model_id, std::uint32_t first_layer)
      : client_(path), model_id_(std::move(model_id)), first_layer_(first_layer) {}

  // The next shard only: one behind it that is gone shows in run.
  [[nodiscard]] std::expected<void, Error> reach() override { return client_.reach(); }
  // Where the exchange as a whole fails, every result is that failure.
  [[nodiscard]] std::vector<adapter::ShardResult> run(
      std::span<const adapter::ShardInput> batch) override;
  [[nodiscard]] std::expected<void, Refusal> give_back(std::span<const ContextKey> keys) override;
  [[nodiscard]] std::expected<std::vector<ShardIdentity>, Refusal> who();

 private:
  FrameClient client_;
  std::string model_id_;
  std::uint32_t first_layer_;
};

}  // namespace hotkv::shard
