#include "client/adapter/head_driver.hpp"

#include <algorithm>

namespace hotkv::adapter {

// One sequence on its way. Positions [0, at) are cached on every shard, as far as is known.
struct HeadDriver::Progress {
  const AdvanceRequest* request;
  std::uint32_t at = 0;
  std::uint32_t lowest = 0;   // the lowest position that a step began at
  std::uint32_t highest = 0;  // positions below have been run at least once
  int resumptions = 0;
  std::optional<CacheMiss> why{};
  std::optional<std::expected<Advance, Refusal>> result{};

  [[nodiscard]] std::uint32_t size() const {
    return static_cast<std::uint32_t>(request->tokens.size());
  }
  void resume_at(std::uint32_t position) {
    at = position;
    lowest = std::min(lowest, position);
  }
};

HeadDriver::Progress HeadDriver::begin(const AdvanceRequest& request) const {
  Progress progress{.request = &request};
  if (request.tokens.empty()) {
    progress.result = std::unexpected(Error{ErrorCode::invalid_argument, "advance",
                                            request.key.session.escaped(), "it has no tokens"});
    return progress;
  }
  const auto cached = own_->cached(request.key, request.expected);
  if (cached.miss && cached.miss->reason == MissReason::daemon_unavailable) {
    progress.result = std::unexpected(*cached.miss);
    return progress;
  }
  if (request.expected > TokenCount{0}) progress.why = cached.miss;
  // The last token is run in any case: its residual is what the next token is sampled from.
  progress.at = std::min(cached.tokens.value(), progress.size() - 1);
  progress.lowest = progress.at;
  // What was published for this very sequence. With nothing expected, it is somebody else's past.
  if (request.expected > TokenCount{0}) {
    progress.highest =
        std::min(std::max(cached.published.value(), request.expected.value()), progress.size());
  }
  return progress;
}

void HeadDriver::settle(Progress& progress, std::uint32_t to, ShardResult result) const {
  if (result) {
    progress.at = to;
    if (to < progress.size()) return;
    if (!result->token) {
      progress.result =
          std::unexpected(Error{ErrorCode::protocol_error, "advance",
                                progress.request->key.session.escaped(), "the tail sent no token"});
      return;
    }
    const std::uint32_t run_again =
        progress.highest > progress.lowest ? progress.highest - progress.lowest : 0;
    progress.result = Advance{*result->token, TokenCount{to}, TokenCount{progress.lowest},
                              TokenCount{run_again}, progress.why};
    return;
  }
  const Refusal& refusal = result.error();
  const bool is_loss = refusal.is_miss() && !refusal.is(MissReason::daemon_unavailable) &&
                       !refusal.is(MissReason::superseded_epoch);
  if (!is_loss || progress.resumptions == kResumptionsMax || progress.at == 0) {
    progress.result = std::unexpected(refusal);
    return;
  }
  const CacheMiss& miss = refusal.miss();
  const std::uint32_t known = miss.reason == MissReason::seq_len_mismatch
                                  ? miss.known_length.value_or(TokenCount{0}).value()
                                  : 0;
  // The head has published what it ran, if the loss was behind it.
  const auto own = own_->cached(progress.request->key, TokenCount{progress.size()});
  progress.highest =
      std::max({progress.highest, progress.at, std::min(own.published.value(), progress.size())});
  progress.why = miss;
  ++progress.resumptions;
  progress.resume_at(std::min(known, progress.at - 1));
}

std::vector<std::expected<Advance, Refusal>> HeadDriver::advance(
    std::span<const AdvanceRequest> requests) {
  std::vector<Progress> all;
  all.reserve(requests.size());
  for (const AdvanceRequest& request : requests) all.push_back(begin(request));
  for (;;) {
    std::vector<ShardInput> batch;
    std::vector<Progress*> running;
    for (Progress& progress : all) {
      if (progress.result) continue;
      const std::uint32_t to = std::min(progress.size(), progress.at + kSliceTokens);
      const auto& tokens = progress.request->tokens;
      ShardInput& input = batch.emplace_back(
          ShardInput{progress.request->key, TokenCount{progress.at}, {}, {}, std::nullopt});
      input.tokens.assign(tokens.begin() + progress.at, tokens.begin() + to);
      if (to == progress.size()) input.sampling = progress.request->sampling;
      running.push_back(&progress);
    }
    if (batch.empty()) break;
    auto results = pipeline_->run(batch);
    for (std::size_t i = 0; i < running.size(); ++i) {
      const std::uint32_t to = running[i]->at + static_cast<std::uint32_t>(batch[i].tokens.size());
      settle(*running[i], to, std::move(results[i]));
    }
  }
  std::vector<std::expected<Advance, Refusal>> results;
  for (Progress& progress : all) results.push_back(std::move(*progress.result));
  return results;
}

}  // namespace hotkv::adapter
