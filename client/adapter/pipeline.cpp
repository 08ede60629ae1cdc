#include "client/adapter/pipeline.hpp"

#include "shared/check.hpp"

namespace hotkv::adapter {

PipelineStage::PipelineStage(BoundaryAdapter& own, ShardLink* next) : own_(&own), next_(next) {
  HOTKV_CHECK(own.computation().is_tail() == (next == nullptr), "only the tail has nothing behind");
}

std::vector<ShardResult> PipelineStage::run(std::span<const ShardInput> batch) {
  if (next_ != nullptr) {
    if (const auto there = next_->reach(); !there) {
      return std::vector<ShardResult>(batch.size(), std::unexpected(ShardRefusal(there.error())));
    }
  }
  std::vector<ShardResult> results = own_->run(batch);
  if (next_ == nullptr) return results;
  std::vector<ShardInput> onward;
  std::vector<std::size_t> indices;
  for (std::size_t i = 0; i < batch.size(); ++i) {
    if (!results[i]) continue;
    onward.push_back({.key = batch[i].key,
                      .position = batch[i].position,
                      .tokens = {},
                      .residual = std::move(results[i]->residual),
                      .sampling = batch[i].sampling});
    indices.push_back(i);
  }
  if (onward.empty()) return results;
  std::vector<ShardResult> next_results = next_->run(onward);
  for (std::size_t i = 0; i < indices.size(); ++i) {
    results[indices[i]] = std::move(next_results[i]);
    if (!results[indices[i]]) results[indices[i]].error().ran_in_front = true;
  }
  return results;
}

std::expected<void, Refusal> PipelineStage::give_back(std::span<const ContextKey> keys) {
  std::expected<void, Refusal> first_failure;
  for (const ContextKey& key : keys) {
    auto given = own_->give_back(key);
    if (!given && first_failure) first_failure = std::move(given);
  }
  if (next_ == nullptr) return first_failure;
  auto behind = next_->give_back(keys);
  return first_failure ? behind : first_failure;
}

}  // namespace hotkv::adapter
