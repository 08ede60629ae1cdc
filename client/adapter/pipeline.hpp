#pragma once
// Shards in a row: the residual of one is the input of the next.

#include <expected>
#include <span>
#include <vector>

#include <hotkv/client.hpp>

#include "client/adapter/boundary_adapter.hpp"

namespace hotkv::adapter {

// A shard and all behind it, down to the tail. Whether it is in this process or behind a socket is
// of no concern to whoever is in front.
class ShardLink {
 public:
  virtual ~ShardLink() = default;
  // Whether the next shard is there, as far as can be told without asking it. A step is not begun
  // while it is not: what the shards in front had run would have to be run again.
  [[nodiscard]] virtual std::expected<void, Error> reach() = 0;
  // Runs a step through this shard and all behind it. Result i belongs to input i; a refusal is the
  // first shard's that refused.
  [[nodiscard]] virtual std::vector<ShardResult> run(std::span<const ShardInput> batch) = 0;
  // Gives back the leases of this shard and all behind it; the first failure, after all were tried.
  [[nodiscard]] virtual std::expected<void, Refusal> give_back(
      std::span<const ContextKey> keys) = 0;
};

// One shard of this process, and what is behind it.
class PipelineStage final : public ShardLink {
 public:
  // Both outlive the stage. `next` is null for the tail, and only for it.
  PipelineStage(BoundaryAdapter& own, ShardLink* next);
  [[nodiscard]] std::expected<void, Error> reach() override { return {}; }
  [[nodiscard]] std::vector<ShardResult> run(std::span<const ShardInput> batch) override;
  [[nodiscard]] std::expected<void, Refusal> give_back(std::span<const ContextKey> keys) override;

 private:
  BoundaryAdapter* own_;
  ShardLink* next_;
};

}  // namespace hotkv::adapter
