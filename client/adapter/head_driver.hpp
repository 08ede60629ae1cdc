#pragma once
// The head's part: from a sequence's tokens to its next one, whatever is cached where.

#include <cstdint>
#include <expected>
#include <optional>
#include <span>
#include <vector>

#include "client/adapter/boundary_adapter.hpp"
#include "client/adapter/pipeline.hpp"

namespace hotkv::adapter {

struct AdvanceRequest {
  ContextKey key;
  std::vector<TokenId> tokens;  // the whole sequence, from position 0
  // Tokens that the caller knows to be cached for this very sequence: what the last Advance of the
  // same key left. 0 for a new one. Nothing beyond it is trusted, so a sequence that was changed
  // under its key is computed anew and never mixed with what was before.
  TokenCount expected;
  SamplingContract sampling = SamplingContract::greedy();
};

struct Advance {
  TokenId token;          // the one after the sequence; its own K and V are not computed yet
  TokenCount cached;      // on every shard now: all tokens of the request
  TokenCount reused;      // of them, those that no shard had to run
  TokenCount recomputed;  // of them, those that had been run before
  // Why less than `expected` could be reused, where that was so.
  std::optional<CacheMiss> why;
};

// Brings all shards of a pipeline to a common length and on. It begins optimistically where the
// caller says. Where a shard has less, be it that it died in a step or that its context is gone,
// the whole pipeline resumes from the smallest length, 0 in the latter case; shards that are ahead
// roll back. Long sequences run in slices, so that messages and grants stay small.
class HeadDriver {
 public:
  static constexpr std::uint32_t kSliceTokens = 128;
  // Resumptions in one call. Each shard of a pipeline can cause one by an old loss; more than this
  // means that contexts are lost as fast as they are computed, and trying on would not help.
  static constexpr int kResumptionsMax = 8;

  // `own` is the head's adapter, `pipeline` begins with it; both outlive the driver.
  HeadDriver(const BoundaryAdapter& own, ShardLink& pipeline) : own_(&own), pipeline_(&pipeline) {}

  // Result i belongs to request i. All sequences that are not done take part in each step.
  // Refusals: as of BoundaryAdapter::run, of whichever shard; a miss other than daemon_unavailable
  // only after kResumptionsMax. Whatever was published by then is reused by the next call.
  [[nodiscard]] std::vector<std::expected<Advance, Refusal>> advance(
      std::span<const AdvanceRequest> requests);

 private:
  struct Progress;
  [[nodiscard]] Progress begin(const AdvanceRequest& request) const;
  void settle(Progress& progress, std::uint32_t to, ShardResult result) const;

  const BoundaryAdapter* own_;
  ShardLink* pipeline_;
};

}  // namespace hotkv::adapter
