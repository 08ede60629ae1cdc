#include "client/adapter/boundary_adapter.hpp"

#include <algorithm>
#include <set>
#include <string>

#include "shared/fault_point.hpp"

namespace hotkv::adapter {

// Steps fill it from top to bottom; what has a refusal takes part in no further one.
struct BoundaryAdapter::Sequence {
  const ShardInput& input;
  TokenCount fresh{};  // tokens of this step
  std::optional<Refusal> refusal{};
  bool is_too_long = false;        // more is cached than the step begins at
  std::optional<View> view{};      // [0, position)
  std::optional<Writer> writer{};  // [position, position + fresh)
  std::vector<float> residual{};   // [fresh][dim]
  std::optional<TokenId> token{};

  [[nodiscard]] bool is_going() const { return !refusal; }
};

std::expected<BoundaryAdapter, Error> BoundaryAdapter::attach(const ClientOptions& options,
                                                              ShardComputation& computation) {
  const auto recipe =
      recipe_for(computation.config(), computation.layers(), computation.kv_dtype());
  if (!recipe) return std::unexpected(recipe.error());
  auto client = Client::attach(options, *recipe);
  if (!client) return std::unexpected(client.error());
  return BoundaryAdapter(std::move(*client), computation);
}

std::vector<ShardResult> BoundaryAdapter::run(std::span<const ShardInput> batch) {
  std::vector<Sequence> sequences;
  sequences.reserve(batch.size());
  std::set<Name> names;
  std::optional<Error> unavailable;
  for (const ShardInput& input : batch) {
    Sequence& sequence = sequences.emplace_back(Sequence{.input = input});
    auto sane = check(input);
    if (sane && !names.insert({input.key.session, input.key.epoch}).second) {
      sane = std::unexpected(Error{ErrorCode::invalid_argument, "run step",
                                   input.key.session.escaped(), "it is twice in one batch"});
    }
    if (sane && batch.size() > kBatchMax) {
      sane = std::unexpected(Error{ErrorCode::invalid_argument, "run step",
                                   std::to_string(batch.size()) + " sequences",
                                   "at most " + std::to_string(kBatchMax)});
    }
    if (!sane) {
      sequence.refusal = sane.error();
      continue;
    }
    sequence.fresh = TokenCount{static_cast<std::uint32_t>(
        computation_->is_head() ? input.tokens.size()
                                : input.residual.size() / computation_->config().dim)};
    // Without the daemon every further question would wait for it just as long.
    if (unavailable) {
      refuse(sequence, *unavailable);
      continue;
    }
    find_view_or_begin(sequence);
    if (sequence.refusal && sequence.refusal->is(MissReason::daemon_unavailable)) {
      unavailable = Error{sequence.refusal->miss().cause.value_or(ErrorCode::daemon_unavailable),
                          "run step", "a batch", "hotkvd does not answer"};
    }
  }
  open(sequences);
  truncate(sequences);
  make_room(sequences);
  compute(sequences);

  std::vector<ShardResult> results;
  for (Sequence& sequence : sequences) {
    if (sequence.is_going()) publish(sequence);
    if (!sequence.is_going()) {
      results.emplace_back(std::unexpected(ShardRefusal(std::move(*sequence.refusal))));
    } else {
      results.emplace_back(ShardOutput{std::move(sequence.residual), sequence.token});
    }
  }
  return results;
}

std::expected<void, Error> BoundaryAdapter::check(const ShardInput& input) const {
  const auto refused = [&](std::string cause) {
    return std::unexpected(Error{ErrorCode::invalid_argument, "run step",
                                 input.key.session.escaped(), std::move(cause)});
  };
  const ModelConfig& model = computation_->config();
  const bool is_head = computation_->is_head();
  if (is_head ? !input.residual.empty() : !input.tokens.empty()) {
    return refused(is_head ? "the head takes tokens, not a residual"
                           : "only the head takes tokens, this shard takes a residual");
  }
  if (input.residual.size() % model.dim != 0) {
    return refused("a residual of " + std::to_string(input.residual.size()) +
                   " elements is no multiple of dim " + std::to_string(model.dim));
  }
  const std::size_t fresh = is_head ? input.tokens.size() : input.residual.size() / model.dim;
  if (fresh == 0) return refused("there is no token to run");
  if (fresh + input.position.value() > model.context_tokens_max) {
    return refused(
        std::to_string(fresh) + " tokens behind " + std::to_string(input.position.value()) +
        " are more than the model's context of " + std::to_string(model.context_tokens_max));
  }
  for (const TokenId token : input.tokens) {
    if (token >= model.vocab_size) {
      return refused("token " + std::to_string(token) + " is not below " +
                     std::to_string(model.vocab_size));
    }
  }
  return {};
}

void BoundaryAdapter::refuse(Sequence& sequence, Refusal refusal) {
  // A lease of what is gone, or of what somebody else took, is of no use. After a timeout nobody
  // knows what it is worth. In doubt it is opened anew: that costs one message.
  held_.erase({sequence.input.key.session, sequence.input.key.epoch});
  sequence.view.reset();
  sequence.writer.reset();
  sequence.refusal = std::move(refusal);
}

std::optional<CacheMiss> BoundaryAdapter::find_view(Sequence& sequence) const {
  const ShardInput& input = sequence.input;
  sequence.view.reset();
  sequence.is_too_long = false;
  auto view = client_.resolve(input.key.session, input.key.epoch, input.position);
  if (view) {
    sequence.view = std::move(*view);
    return std::nullopt;
  }
  const CacheMiss& miss = view.error();
  sequence.is_too_long =
      miss.reason == MissReason::seq_len_mismatch && miss.known_length > input.position;
  return sequence.is_too_long ? std::nullopt : std::optional(miss);
}

// Before anything is opened: opening makes an empty context where there is none, and the reason of
// the miss would be lost.
void BoundaryAdapter::find_view_or_begin(Sequence& sequence) {
  const ShardInput& input = sequence.input;
  const auto miss = find_view(sequence);
  if (!miss) return;
  const bool begins_anew = input.position == TokenCount{0} &&
                           miss->reason != MissReason::daemon_unavailable &&
                           miss->reason != MissReason::superseded_epoch;
  if (!begins_anew) return refuse(sequence, *miss);
  held_.erase({input.key.session, input.key.epoch});  // of a context that is gone
}

void BoundaryAdapter::give_back_oldest() {
  while (held_.size() > kHeldMax) {
    const auto oldest = std::ranges::min_element(
        held_, {}, [](const auto& entry) { return entry.second.last_step; });
    if (oldest->second.last_step == step_) return;  // all are of this very step
    held_.erase(oldest);                            // the context's destructor gives the lease back
  }
}

void BoundaryAdapter::open(std::vector<Sequence>& sequences) {
  ++step_;
  std::vector<ContextKey> keys;
  std::vector<Sequence*> asking;
  for (Sequence& sequence : sequences) {
    if (!sequence.is_going()) continue;
    const ContextKey& key = sequence.input.key;
    const auto held = held_.find({key.session, key.epoch});
    if (held != held_.end() && held->second.context.length() >= sequence.input.position) {
      held->second.last_step = step_;
    } else {
      // A lease that knows of less than there is, is of a context that was there before.
      if (held != held_.end()) held_.erase(held);
      keys.push_back(key);
      asking.push_back(&sequence);
    }
  }
  if (keys.empty()) return;
  HOTKV_FAULT_POINT("step.before-open");
  auto contexts = client_.open(keys);
  for (std::size_t i = 0; i < keys.size(); ++i) {
    if (!contexts[i]) {
      refuse(*asking[i], contexts[i].error());
      continue;
    }
    held_.insert_or_assign({keys[i].session, keys[i].epoch}, Held{std::move(*contexts[i]), step_});
    // Looked at again under the lease: until now another worker could roll back and publish other
    // tokens of the same number.
    if (const auto miss = find_view(*asking[i])) refuse(*asking[i], *miss);
  }
  give_back_oldest();
}

void BoundaryAdapter::truncate(std::vector<Sequence>& sequences) {
  std::vector<TruncateRequest> requests;
  std::vector<Sequence*> asking;
  for (Sequence& sequence : sequences) {
    if (!sequence.is_going() || !sequence.is_too_long) continue;
    const ContextKey& key = sequence.input.key;
    requests.push_back({&held_.at({key.session, key.epoch}).context, sequence.input.position});
    asking.push_back(&sequence);
  }
  if (requests.empty()) return;
  auto outcomes = client_.truncate(requests);
  for (std::size_t i = 0; i < outcomes.size(); ++i) {
    Sequence& sequence = *asking[i];
    if (!outcomes[i]) {
      refuse(sequence, outcomes[i].error());
    } else if (const auto miss = find_view(sequence)) {
      refuse(sequence, *miss);
    } else if (sequence.is_too_long) {
      refuse(sequence,
             Error{ErrorCode::length_mismatch, "run step", sequence.input.key.session.escaped(),
                   "somebody published while it was rolled back"});
    }
  }
}

void BoundaryAdapter::make_room(std::vector<Sequence>& sequences) {
  std::vector<AppendRequest> requests;
  std::vector<Sequence*> asking;
  for (Sequence& sequence : sequences) {
    if (!sequence.is_going()) continue;
    const ContextKey& key = sequence.input.key;
    requests.push_back({&held_.at({key.session, key.epoch}).context, sequence.fresh});
    asking.push_back(&sequence);
  }
  if (requests.empty()) return;
  HOTKV_FAULT_POINT("step.before-append");
  auto writers = client_.append(requests);
  for (std::size_t i = 0; i < writers.size(); ++i) {
    Sequence& sequence = *asking[i];
    if (!writers[i]) {
      refuse(sequence, writers[i].error());
    } else if (writers[i]->position() != sequence.input.position) {
      refuse(sequence,
             Error{ErrorCode::length_mismatch, "run step", sequence.input.key.session.escaped(),
                   "somebody published while the step began"});
    } else {
      sequence.writer = std::move(*writers[i]);
    }
  }
}

void BoundaryAdapter::compute(std::vector<Sequence>& sequences) {
  std::vector<SequenceStep> steps;
  for (Sequence& sequence : sequences) {
    if (!sequence.is_going()) continue;
    if (computation_->is_head()) {
      sequence.residual.resize(std::size_t{sequence.fresh.value()} * computation_->config().dim);
      computation_->embed(sequence.input.tokens, sequence.residual);
    } else {
      sequence.residual = sequence.input.residual;
    }
    steps.push_back({sequence.residual, StepKv::over(*sequence.view, *sequence.writer)});
  }
  if (steps.empty()) return;
  computation_->run_layers(steps);
}

void BoundaryAdapter::publish(Sequence& sequence) {
  if (const auto published = sequence.writer->publish(); !published) {
    return refuse(sequence, published.error());
  }
  // Unpinned before sampling and sending, so that memory is held no longer than it is used.
  sequence.writer.reset();
  sequence.view.reset();
  if (!computation_->is_tail()) return;
  if (sequence.input.sampling) {
    sequence.token = sample_after(sequence.residual, *sequence.input.sampling);
  }
  sequence.residual.clear();
}

TokenId BoundaryAdapter::sample_after(std::span<const float> residual,
                                      const SamplingContract& sampling) {
  const ModelConfig& model = computation_->config();
  const auto last = residual.last(model.dim);
  std::vector<float> normalised(last.begin(), last.end());
  computation_->final_norm(normalised);
  std::vector<float> logits(model.vocab_size);
  computation_->output_head(normalised, logits);
  return computation_->sample(sampling, logits);
}

BoundaryAdapter::Cached BoundaryAdapter::cached(const ContextKey& key, TokenCount expected) const {
  const auto view = client_.resolve(key.session, key.epoch, expected);
  if (view) return {expected, std::nullopt};
  const CacheMiss& miss = view.error();
  if (miss.reason != MissReason::seq_len_mismatch) return {TokenCount{0}, miss};
  const TokenCount known = miss.known_length.value_or(TokenCount{0});
  return {known, known < expected ? std::optional(miss) : std::nullopt};
}

std::expected<void, Refusal> BoundaryAdapter::give_back(const ContextKey& key) {
  const auto held = held_.find({key.session, key.epoch});
  if (held == held_.end()) return {};
  auto closed = held->second.context.close();
  held_.erase(held);
  return closed;
}

}  // namespace hotkv::adapter
