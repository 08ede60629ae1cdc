#include "client/library/held_context.hpp"

#include <algorithm>
#include <string>
#include <utility>

#include "shared/words.hpp"

namespace hotkv::client {
namespace {

// Grants that are asked for before an append gives up. One is enough unless the context is
// truncated or evicted in the moment between the daemon's answer and the pin.
constexpr int kGrantsMax = 3;

}  // namespace

std::optional<TokenCount> HeldContext::published() const {
  if (attachment_->is_foreign()) return std::nullopt;
  const auto word =
      LengthWord::from_bits(attachment_->length(position_.slot).load(std::memory_order_acquire));
  if (word.generation != position_.generation) return std::nullopt;
  return word.tokens;
}

TokenCount HeldContext::granted() const {
  if (attachment_->is_foreign() || attachment_->is_lost()) return TokenCount{0};
  const auto now = published();
  if (!now || *now > position_.writable) return TokenCount{0};
  return TokenCount{position_.writable.value() - now->value()};
}

Error HeldContext::error(ErrorCode code, std::string_view operation, std::string cause) const {
  return Error{code, std::string(operation), describe(session(), epoch()), std::move(cause)};
}

Error HeldContext::about(Error failure, std::string_view operation) const {
  failure.operation = operation;
  failure.object = describe(session(), epoch());
  return failure;
}

CacheMiss HeldContext::lost_in_restart() const {
  return {session(), epoch(), {}, MissReason::lost_in_restart, epoch(), length(), {}, {}};
}

Refusal HeldContext::unanswered(const Error& failure, std::string_view operation) const {
  // Between the check and the request the daemon can have come back with other memory.
  if (attachment_->is_lost()) return lost_in_restart();
  return about(failure, operation);
}

std::expected<void, Refusal> HeldContext::check_usable(std::string_view operation) const {
  if (attachment_->is_foreign()) {
    return std::unexpected(error(ErrorCode::used_after_fork, operation,
                                 "this process was forked from the one that attached"));
  }
  if (given_back_) {
    return std::unexpected(error(ErrorCode::lease_lost, operation, "it was given back"));
  }
  if (attachment_->is_lost()) return std::unexpected(lost_in_restart());
  return {};
}

std::expected<TokenCount, Refusal> HeldContext::length_with(TokenCount tokens,
                                                            std::string_view operation) const {
  if (auto usable = check_usable(operation); !usable) return std::unexpected(usable.error());
  const std::uint64_t up_to = std::uint64_t{length().value()} + tokens.value();
  if (tokens.value() == 0 || up_to > kContextTokensMax) {
    return std::unexpected(error(ErrorCode::invalid_argument, operation,
                                 std::to_string(tokens.value()) + " tokens behind " +
                                     std::to_string(length().value()) + ", the limit is " +
                                     std::to_string(kContextTokensMax) + " in all"));
  }
  return TokenCount{static_cast<std::uint32_t>(up_to)};
}

std::variant<HeldContext::Settled, HeldContext::NeedsGrant> HeldContext::try_append(
    TokenCount tokens) {
  const auto up_to = length_with(tokens, "append");
  if (!up_to) return std::unexpected(up_to.error());
  const auto word = attachment_->pins().claim({position_.slot, position_.generation});
  if (!word) {
    return std::unexpected(
        Refusal(error(ErrorCode::too_many_pins, "append",
                      "this client has " + std::to_string(kPinsPerPage) + " views and writers")));
  }
  Pin pin(attachment_->pins(), *word);
  HOTKV_FAULT_POINT("append.between-pin-and-confirm");
  const auto snapshot = confirm_pin(attachment_->head(position_.slot),
                                    attachment_->length(position_.slot), position_.generation);
  // The generation is over: the daemon says what became of the context.
  if (!snapshot) return NeedsGrant{*up_to};
  const std::uint64_t end = std::uint64_t{snapshot->length.value()} + tokens.value();
  if (end > position_.writable.value()) return NeedsGrant{*up_to};
  position_.length = snapshot->length;
  attachment_->touch(position_.slot);
  auto chain = attachment_->chains().chain(
      position_.slot, position_.generation, snapshot->tip,
      attachment_->geometry().chunks_for(TokenCount{static_cast<std::uint32_t>(end)}));
  if (!chain) return std::unexpected(Refusal(about(chain.error(), "append")));
  return attachment_->make_writer(std::move(*chain), std::move(pin), position_, tokens);
}

std::expected<std::optional<HeldContext::NeedsGrant>, Refusal> HeldContext::try_reserve(
    TokenCount tokens) const {
  const auto up_to = length_with(tokens, "reserve");
  if (!up_to) return std::unexpected(up_to.error());
  if (granted() >= tokens) return std::nullopt;
  return NeedsGrant{*up_to};
}

protocol::AppendOperation HeldContext::append_operation(NeedsGrant grant) const {
  return {encode_name(session(), epoch()), position_.generation.value(), grant.up_to.value()};
}

std::expected<std::optional<protocol::TruncateOperation>, Refusal> HeldContext::try_truncate(
    TokenCount to) const {
  if (auto usable = check_usable("truncate"); !usable) return std::unexpected(usable.error());
  // Where the generation is over there is no length to compare with: the daemon says what became of
  // the context.
  const auto now = published();
  if (now && to > *now) {
    return std::unexpected(error(
        ErrorCode::invalid_argument, "truncate",
        "to " + std::to_string(to.value()) + " tokens, there are " + std::to_string(now->value())));
  }
  if (now && *now == to) return std::nullopt;
  return protocol::TruncateOperation{encode_name(session(), epoch()), position_.generation.value(),
                                     length().value(), to.value(), 0};
}

std::expected<void, Refusal> HeldContext::take(const std::expected<Answer, Error>& answer,
                                               std::string_view operation) {
  if (!answer) return std::unexpected(unanswered(answer.error(), operation));
  if (!answer->is_done()) {
    return std::unexpected(answer->refusal({operation, session(), epoch()}));
  }
  const auto position = check_position(answer->untrusted_result, attachment_->facts().capacities);
  if (!position) return std::unexpected(about(position.error(), operation));
  if (position->slot != position_.slot) {  // a context lives and dies in one slot
    return std::unexpected(
        error(ErrorCode::protocol_error, operation,
              "the daemon moved it to slot " + std::to_string(position->slot.value())));
  }
  position_ = *position;
  lease_.stands_at(position_);
  return {};
}

void HeldContext::populate_grant() {
  const auto word = attachment_->pins().claim({position_.slot, position_.generation});
  if (!word) return;
  const Pin pin(attachment_->pins(), *word);
  const auto snapshot = confirm_pin(attachment_->head(position_.slot),
                                    attachment_->length(position_.slot), position_.generation);
  if (!snapshot) return;
  const auto chain =
      attachment_->chains().chain(position_.slot, position_.generation, snapshot->tip, 0);
  if (!chain) return;
  // From the chunk that the next token goes to.
  const std::span chunks((*chain)->chunks.get(), (*chain)->size);
  const std::uint32_t first = snapshot->length.value() / attachment_->geometry().chunk_tokens;
  if (first < chunks.size()) attachment_->populate(chunks.subspan(first));
}

std::expected<void, Refusal> HeldContext::close() {
  if (auto usable = check_usable("close"); !usable) return std::unexpected(usable.error());
  given_back_ = true;
  auto pending = lease_.close();
  if (!pending) return {};  // another Context of this client goes on with the lease
  auto reply =
      attachment_->connection().await(std::move(*pending), attachment_->deadline_from_now());
  if (!reply) return std::unexpected(unanswered(reply.error(), "close"));
  const auto result = reply->result<protocol::OperationResult>(0);
  if (result.outcome == static_cast<std::uint32_t>(protocol::Outcome::done)) return {};
  return std::unexpected(refusal_of(*reply, result, {"close", session(), epoch()}));
}

std::expected<void, Refusal> HeldContext::release() {
  if (auto usable = check_usable("release"); !usable) return std::unexpected(usable.error());
  const protocol::ReleaseOperation operation{encode_name(session(), epoch()),
                                             position_.generation.value(), position_.slot.value()};
  const auto answers = ask(attachment_->connection(), protocol::Type::release,
                           std::span(&operation, 1), attachment_->deadline_from_now());
  if (!answers[0]) return std::unexpected(unanswered(answers[0].error(), "release"));
  if (!answers[0]->is_done()) {
    return std::unexpected(answers[0]->refusal({"release", session(), epoch()}));
  }
  given_back_ = true;
  lease_.ended();
  return {};
}

namespace {

// Runs the jobs of each attachment together. Nearly always there is but one.
template <class T, class Job, class Run>
std::vector<std::expected<T, Refusal>> of_each_attachment(std::span<const Job> jobs, Run run) {
  std::vector<std::expected<T, Refusal>> results;
  if (jobs.empty()) return results;
  const auto of = [](const Job& job) { return &job.context->attachment(); };
  if (std::ranges::all_of(jobs, [&](const Job& job) { return of(job) == of(jobs[0]); })) {
    return run(*of(jobs[0]), jobs);
  }
  std::vector<std::optional<std::expected<T, Refusal>>> found(jobs.size());
  for (std::size_t first = 0; first < jobs.size(); ++first) {
    if (found[first]) continue;
    std::vector<std::size_t> places;
    std::vector<Job> part;
    for (std::size_t i = first; i < jobs.size(); ++i) {
      if (of(jobs[i]) != of(jobs[first])) continue;
      places.push_back(i);
      part.push_back(jobs[i]);
    }
    auto answers = run(*of(jobs[first]), std::span<const Job>(part));
    for (std::size_t i = 0; i < places.size(); ++i) {
      found[places[i]].emplace(std::move(answers[i]));
    }
  }
  for (auto& result : found) results.push_back(std::move(*result));
  return results;
}

std::vector<std::expected<Writer, Refusal>> append_of_one(const Attachment& attachment,
                                                          std::span<const AppendJob> jobs) {
  std::vector<std::optional<std::expected<Writer, Refusal>>> results(jobs.size());
  std::optional<Deadline> deadline;
  for (int grants = 0;; ++grants) {
    std::vector<std::size_t> asking;
    std::vector<protocol::AppendOperation> operations;
    for (std::size_t i = 0; i < jobs.size(); ++i) {
      if (results[i]) continue;
      auto attempt = jobs[i].context->try_append(jobs[i].tokens);
      if (auto* settled = std::get_if<HeldContext::Settled>(&attempt)) {
        results[i].emplace(std::move(*settled));
      } else if (grants == kGrantsMax) {
        results[i].emplace(std::unexpected(jobs[i].context->error(
            ErrorCode::lease_lost, "append", "the context changed after every grant")));
      } else {
        asking.push_back(i);
        operations.push_back(
            jobs[i].context->append_operation(std::get<HeldContext::NeedsGrant>(attempt)));
      }
    }
    if (asking.empty()) break;
    if (!deadline) deadline = attachment.deadline_from_now();
    const auto answers = ask(attachment.connection(), protocol::Type::append,
                             std::span<const protocol::AppendOperation>(operations), *deadline);
    for (std::size_t k = 0; k < asking.size(); ++k) {
      auto taken = jobs[asking[k]].context->take(answers[k], "append");
      if (taken) {
        jobs[asking[k]].context->populate_grant();
      } else {
        results[asking[k]].emplace(std::unexpected(std::move(taken.error())));
      }
    }
  }
  std::vector<std::expected<Writer, Refusal>> all;
  all.reserve(jobs.size());
  for (auto& result : results) all.push_back(std::move(*result));
  return all;
}

std::vector<std::expected<void, Refusal>> truncate_of_one(const Attachment& attachment,
                                                          std::span<const TruncateJob> jobs) {
  std::vector<std::expected<void, Refusal>> results(jobs.size());
  std::vector<std::size_t> asking;
  std::vector<protocol::TruncateOperation> operations;
  for (std::size_t i = 0; i < jobs.size(); ++i) {
    auto attempt = jobs[i].context->try_truncate(jobs[i].to);
    if (!attempt) {
      results[i] = std::unexpected(std::move(attempt.error()));
    } else if (*attempt) {
      asking.push_back(i);
      operations.push_back(**attempt);
    }
  }
  if (asking.empty()) return results;
  const auto answers =
      ask(attachment.connection(), protocol::Type::truncate,
          std::span<const protocol::TruncateOperation>(operations), attachment.deadline_from_now());
  for (std::size_t k = 0; k < asking.size(); ++k) {
    results[asking[k]] = jobs[asking[k]].context->take(answers[k], "truncate");
  }
  return results;
}

}  // namespace

std::vector<std::expected<Writer, Refusal>> append_all(std::span<const AppendJob> jobs) {
  return of_each_attachment<Writer>(jobs, append_of_one);
}

std::vector<std::expected<void, Refusal>> truncate_all(std::span<const TruncateJob> jobs) {
  return of_each_attachment<void>(jobs, truncate_of_one);
}

std::expected<void, Refusal> reserve(HeldContext& context, TokenCount tokens) {
  const auto attempt = context.try_reserve(tokens);
  if (!attempt) return std::unexpected(attempt.error());
  if (!*attempt) return {};
  const auto operation = context.append_operation(**attempt);
  const Attachment& attachment = context.attachment();
  const auto answers = ask(attachment.connection(), protocol::Type::append,
                           std::span(&operation, 1), attachment.deadline_from_now());
  auto taken = context.take(answers[0], "reserve");
  if (taken) context.populate_grant();
  return taken;
}

}  // namespace hotkv::client
