#pragma once
// A context as its holder knows it, and what a holder can do with it.

#include <cstdint>
#include <expected>
#include <memory>
#include <optional>
#include <span>
#include <variant>
#include <vector>

#include <hotkv/client.hpp>
#include <hotkv/writer.hpp>

#include "client/library/ask.hpp"
#include "client/library/attachment.hpp"
#include "client/library/lease_table.hpp"
#include "client/library/position.hpp"

namespace hotkv {

namespace client {

// Used by one thread at a time, as the Context is.
class HeldContext {
 public:
  HeldContext(std::shared_ptr<Attachment> attachment, Lease lease, const Position& position)
      : attachment_(std::move(attachment)), lease_(std::move(lease)), position_(position) {}

  [[nodiscard]] const Attachment& attachment() const { return *attachment_; }
  [[nodiscard]] const SessionId& session() const { return lease_.session(); }
  [[nodiscard]] Epoch epoch() const { return lease_.epoch(); }
  // Published tokens: as memory says while the generation is ours, else as last known.
  [[nodiscard]] TokenCount length() const { return published().value_or(position_.length); }
  [[nodiscard]] TokenCount granted() const;

  // Errors: why nothing can be done with it at all (used_after_fork, lease_lost once given back).
  // Misses: lost_in_restart.
  [[nodiscard]] std::expected<void, Refusal> check_usable(std::string_view operation) const;
  [[nodiscard]] Error error(ErrorCode code, std::string_view operation, std::string cause) const;
  // The same failure, said of this context.
  [[nodiscard]] Error about(Error failure, std::string_view operation) const;

  // Tokens that the daemon has to make writable first.
  struct NeedsGrant {
    TokenCount up_to;
  };
  // A writer from memory alone, where it is decided there.
  using Settled = std::expected<Writer, Refusal>;
  [[nodiscard]] std::variant<Settled, NeedsGrant> try_append(TokenCount tokens);
  // Nothing where they are writable already.
  [[nodiscard]] std::expected<std::optional<NeedsGrant>, Refusal> try_reserve(
      TokenCount tokens) const;
  [[nodiscard]] protocol::AppendOperation append_operation(NeedsGrant grant) const;

  // Nothing where `to` is the length already.
  [[nodiscard]] std::expected<std::optional<protocol::TruncateOperation>, Refusal> try_truncate(
      TokenCount to) const;

  // Makes the pages of what is granted present, while the daemon's answer has just been waited for
  // anyway, so that writing to them meets no fault. Best effort.
  void populate_grant();

  // Goes on from where the daemon says the context stands, or says why it does not.
  [[nodiscard]] std::expected<void, Refusal> take(const std::expected<Answer, Error>& answer,
                                                  std::string_view operation);

  [[nodiscard]] std::expected<void, Refusal> close();
  [[nodiscard]] std::expected<void, Refusal> release();

 private:
  [[nodiscard]] std::optional<TokenCount> published() const;
  // The length that `tokens` more make. Errors: invalid_argument, and as check_usable.
  [[nodiscard]] std::expected<TokenCount, Refusal> length_with(TokenCount tokens,
                                                               std::string_view operation) const;
  // That the daemon came back without the memory in which the context was.
  [[nodiscard]] CacheMiss lost_in_restart() const;
  // No answer came; why.
  [[nodiscard]] Refusal unanswered(const Error& failure, std::string_view operation) const;

  std::shared_ptr<Attachment> attachment_;  // outlives the lease
  Lease lease_;
  Position position_;  // as the daemon last said; its length also as last seen in memory
  bool given_back_ = false;
};

// What is asked of one context in a batch.
struct AppendJob {
  HeldContext* context;
  TokenCount tokens;
};
struct TruncateJob {
  HeldContext* context;
  TokenCount to;
};

// Result i belongs to job i. All contexts are of one client; where they are of several lives of its
// memory, those of each life are asked for together.
[[nodiscard]] std::vector<std::expected<Writer, Refusal>> append_all(
    std::span<const AppendJob> jobs);
[[nodiscard]] std::vector<std::expected<void, Refusal>> truncate_all(
    std::span<const TruncateJob> jobs);
[[nodiscard]] std::expected<void, Refusal> reserve(HeldContext& context, TokenCount tokens);

}  // namespace client

struct Context::State : client::HeldContext {
  using HeldContext::HeldContext;
};

}  // namespace hotkv
