#pragma once
// The head's part: from a sequence's tokens to its next one, whatever is cached where.

#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "client/adapter/boundary_adapter.hpp"
#include "client/adapter/pipeline.hpp"

namespace hotkv::adapter {

// hotkv keeps rows, not tokens: that cached rows are those of these tokens is for the caller to
// know.
struct AdvanceRequest {
  ContextKey key;
  std::vector<TokenId> tokens;  // the whole sequence, from position 0
  // Leading tokens that were run under this key and are cached, as far as the caller knows: what
  // the last Advance said, or less where tokens were changed since. If fewer are there, `why` says
  // so.
  TokenCount expected{};
  // Whether this key was never used with other tokens. Then what is cached beyond `expected` is of
  // this sequence too (its answer was lost) and is reused. Else it is rolled back and run anew:
  // after a refused Advance with other tokens nobody knows how far those got (nor is it counted).
  bool is_sole = false;
  SamplingContract sampling = SamplingContract::greedy();
};

// How far a sequence has come, and either the token after it or why there is none.
struct Advance {
  std::optional<TokenId> token;    // its own K and V are not computed yet
  std::optional<Refusal> refusal;  // set if and only if `token` is not
  TokenCount
      cached{};  // leading tokens that every shard has, as far as is known; all, with a token
  TokenCount reused{};      // leading tokens that no shard had to run
  TokenCount recomputed{};  // tokens that were run although they had been run before
  // The last loss that was met, if any: of this shard against `expected`, or of one behind it.
  std::optional<CacheMiss> why{};
};

// Brings all shards of a pipeline to a common length and on. It begins optimistically with what the
// head has. Where a shard behind has less, be it that it died in a step or that its context is
// gone, the whole pipeline resumes from the smallest length, 0 in the latter case; shards that are
// ahead roll back. Long sequences run in slices, so that messages and grants stay small.
class HeadDriver {
 public:
  // Tokens of one step, all its sequences together; a sequence has at least one.
  static constexpr std::uint32_t kStepTokens = 128;
  // Resumptions in one call. Each shard of a pipeline can cause one by an old loss; more than this
  // means that contexts are lost as fast as they are computed, and trying on would not help.
  static constexpr int kResumptionsMax = 8;

  // `own` is the head's adapter, `pipeline` begins with it; both outlive the driver.
  HeadDriver(const BoundaryAdapter& own, ShardLink& pipeline) : own_(&own), pipeline_(&pipeline) {}

  // Result i belongs to request i. All sequences that are not done take part in each step.
  // Refusals: as of BoundaryAdapter::run, of whichever shard. Of the misses daemon_unavailable and
  // superseded_epoch at once, others only after kResumptionsMax.
  [[nodiscard]] std::vector<Advance> advance(std::span<const AdvanceRequest> requests);

 private:
  struct Progress;
  void begin(Progress& progress) const;
  void settle(Progress& progress, std::uint32_t to, ShardResult result) const;

  const BoundaryAdapter* own_;
  ShardLink* pipeline_;
};

}  // namespace hotkv::adapter
