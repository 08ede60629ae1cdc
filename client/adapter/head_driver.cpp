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
  // The first step begins at `position`, or with the last token: that one is run in any case, since
  // its residual is what the next token is sampled from.
  void begin_at(std::uint32_t position) { at = lowest = std::min(position, size() - 1); }
  // Positions [at, to) were run on the head.
  void count_run(std::uint32_t to) {
    if (run_before > at) recomputed += std::min(run_before, to) - at;
    run_before = std::max(run_before, to);
  }
  [[nodiscard]] Advance result() const {
    return {token, refusal, TokenCount{at}, TokenCount{lowest}, TokenCount{recomputed}, why};
  }
};

namespace {

// A refusal that is mended by running tokens again, and how many are left where it came from.
std::optional<std::uint32_t> length_after_loss(const Refusal& refusal) {
  if (!refusal.is_miss()) return std::nullopt;
  const CacheMiss& miss = refusal.miss();
  switch (miss.reason) {
    case MissReason::daemon_unavailable:
    case MissReason::superseded_epoch: return std::nullopt;
    case MissReason::seq_len_mismatch: return miss.known_length.value_or(TokenCount{0}).value();
    default: return 0;
  }
}

}  // namespace

void HeadDriver::begin(Progress& progress) const {
  const AdvanceRequest& request = *progress.request;
  const std::uint32_t expected = request.expected.value();
  progress.begin_at(expected);
  if (expected == 0 && !request.is_sole) return;  // whatever is cached is not trusted
  const auto cached = own_->cached(request.key, request.expected);
  if (cached.miss && cached.miss->reason == MissReason::daemon_unavailable) {
    progress.refusal = *cached.miss;
    return;
  }
  if (expected > 0) progress.why = cached.miss;
  const std::uint32_t published = cached.published.value();
  const std::uint32_t trusted = request.is_sole ? published : std::min(published, expected);
  progress.begin_at(trusted);
  progress.run_before = std::min(std::max(trusted, expected), progress.size());
}

void HeadDriver::settle(Progress& progress, std::uint32_t to, ShardResult result) const {
  if (!result) {
    const ShardRefusal& refusal = result.error();
    if (refusal.ran_in_front) progress.count_run(to);
    const auto length = length_after_loss(refusal);
    if (!length || progress.resumptions == kResumptionsMax) {
      progress.refusal = refusal;
      return;
    }
    ++progress.resumptions;
    progress.why = refusal.miss();
    // A shard that has less than it was asked for: the next step begins there, or lower at any
    // rate.
    const std::uint32_t lower = progress.at > 0 ? progress.at - 1 : 0;
    progress.at = std::min(*length, lower);
    progress.lowest = std::min(progress.lowest, progress.at);
    return;
  }
  progress.count_run(to);
  progress.at = to;
  if (to < progress.size()) return;
  progress.token = result->token;
  if (!progress.token) {
    progress.refusal = Error{ErrorCode::protocol_error, "advance",
                             progress.request->key.session.escaped(), "the tail sent no token"};
  }
}

std::vector<Advance> HeadDriver::advance(std::span<const AdvanceRequest> requests) {
  std::vector<Progress> all;
  all.reserve(requests.size());
  bool is_daemon_gone = false;
  for (const AdvanceRequest& request : requests) {
    Progress& progress = all.emplace_back(Progress{.request = &request});
    if (request.tokens.empty()) {
      progress.refusal = Error{ErrorCode::invalid_argument, "advance",
                               request.key.session.escaped(), "it has no tokens"};
    } else if (is_daemon_gone) {
      // Every further question would wait for it just as long.
      progress.begin_at(request.expected.value());
      progress.refusal = Error{ErrorCode::daemon_unavailable, "advance",
                               request.key.session.escaped(), "hotkvd does not answer"};
    } else {
      begin(progress);
      is_daemon_gone = progress.refusal.has_value();
    }
  }
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
