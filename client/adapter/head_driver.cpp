#include "client/adapter/head_driver.hpp"

#include <algorithm>

namespace hotkv::adapter {

// One sequence on its way. Positions [0, at) are cached on every shard, as far as is known.
struct HeadDriver::Progress {
  const AdvanceRequest* request;
  std::uint32_t at = 0;
  std::uint32_t lowest = 0;      // the lowest position that a step began at
  std::uint32_t run_before = 0;  // positions below were run at least once
  std::uint32_t recomputed = 0;
  int resumptions = 0;
  std::optional<CacheMiss> why{};
  std::optional<TokenId> token{};
  std::optional<Refusal> refusal{};

  [[nodiscard]] bool is_going() const { return !token && !refusal; }
  [[nodiscard]] std::uint32_t size() const {
    return static_cast<std::uint32_t>(request->tokens.size());
  }
  // Positions [at, to) are about to be run on the head.
  void count_run(std::uint32_t to) {
    if (run_before > at) recomputed += std::min(run_before, to) - at;
    run_before = std::max(run_before, to);
  }
  [[nodiscard]] Advance result() const {
    return {token, refusal, TokenCount{at}, TokenCount{lowest}, TokenCount{recomputed}, why};
  }
};

HeadDriver::Progress HeadDriver::begin(const AdvanceRequest& request) const {
  Progress progress{.request = &request};
  if (request.tokens.empty()) {
    progress.refusal = Error{ErrorCode::invalid_argument, "advance", request.key.session.escaped(),
                             "it has no tokens"};
    return progress;
  }
  // The last token is run in any case: its residual is what the next token is sampled from.
  const std::uint32_t usable = progress.size() - 1;
  const std::uint32_t trusted = request.is_sole ? progress.size() : request.expected.value();
  if (trusted == 0) return progress;
  progress.at = std::min(request.expected.value(), usable);  // until something else is known
  const auto cached = own_->cached(request.key, request.expected);
  if (cached.miss && cached.miss->reason == MissReason::daemon_unavailable) {
    progress.refusal = *cached.miss;
    return progress;
  }
  if (request.expected > TokenCount{0}) progress.why = cached.miss;
  progress.at = std::min({cached.published.value(), trusted, usable});
  progress.lowest = progress.at;
  const std::uint32_t published = request.is_sole ? cached.published.value() : 0;
  progress.run_before = std::min(std::max(published, request.expected.value()), progress.size());
  return progress;
}

void HeadDriver::settle(Progress& progress, std::uint32_t to, ShardResult result) const {
  if (result) {
    progress.count_run(to);
    progress.at = to;
    if (to < progress.size()) return;
    progress.token = result->token;
    if (!progress.token) {
      progress.refusal = Error{ErrorCode::protocol_error, "advance",
                               progress.request->key.session.escaped(), "the tail sent no token"};
    }
    return;
  }
  const ShardRefusal& refusal = result.error();
  if (refusal.ran_in_front) progress.count_run(to);
  const bool is_loss = refusal.is_miss() && !refusal.is(MissReason::daemon_unavailable) &&
                       !refusal.is(MissReason::superseded_epoch);
  if (!is_loss || progress.resumptions == kResumptionsMax || progress.at == 0) {
    progress.refusal = refusal;
    return;
  }
  const CacheMiss& miss = refusal.miss();
  const std::uint32_t known = miss.reason == MissReason::seq_len_mismatch
                                  ? miss.known_length.value_or(TokenCount{0}).value()
                                  : 0;
  progress.why = miss;
  ++progress.resumptions;
  progress.at = std::min(known, progress.at - 1);
  progress.lowest = std::min(progress.lowest, progress.at);
}

std::vector<Advance> HeadDriver::advance(std::span<const AdvanceRequest> requests) {
  std::vector<Progress> all;
  all.reserve(requests.size());
  for (const AdvanceRequest& request : requests) all.push_back(begin(request));
  for (;;) {
    std::vector<Progress*> going;
    for (Progress& progress : all) {
      if (progress.is_going()) going.push_back(&progress);
    }
    if (going.empty()) break;
    const auto share = std::max(1u, kStepTokens / static_cast<std::uint32_t>(going.size()));
    std::vector<ShardInput> batch;
    for (const Progress* progress : going) {
      const std::uint32_t to = std::min(progress->size(), progress->at + share);
      const auto& tokens = progress->request->tokens;
      ShardInput& input = batch.emplace_back(
          ShardInput{.key = progress->request->key, .position = TokenCount{progress->at}});
      input.tokens.assign(tokens.begin() + progress->at, tokens.begin() + to);
      if (to == progress->size()) input.sampling = progress->request->sampling;
    }
    auto results = pipeline_->run(batch);
    for (std::size_t i = 0; i < going.size(); ++i) {
      const std::uint32_t to = going[i]->at + static_cast<std::uint32_t>(batch[i].tokens.size());
      settle(*going[i], to, std::move(results[i]));
    }
  }
  std::vector<Advance> results;
  for (const Progress& progress : all) results.push_back(progress.result());
  return results;
}

}  // namespace hotkv::adapter
