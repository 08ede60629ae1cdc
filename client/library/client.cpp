#include <hotkv/client.hpp>

#include <algorithm>
#include <array>
#include <string>
#include <utility>

#include "client/library/ask.hpp"
#include "client/library/current_attachment.hpp"
#include "client/library/held_context.hpp"

namespace hotkv {
namespace {

using client::Answer;
using client::Asked;
using client::Lease;

Error client_error(ErrorCode code, std::string_view operation, std::string object,
                   std::string cause) {
  return Error{code, std::string(operation), std::move(object), std::move(cause)};
}

// Why this client can do nothing, or not this.
std::optional<Error> check_usable(const client::CurrentAttachment* current,
                                  std::string_view operation, Access needed = Access::read) {
  if (current == nullptr) {
    return client_error(ErrorCode::invalid_argument, operation, "client", "it was moved from");
  }
  if (current->is_foreign()) {
    return client_error(ErrorCode::used_after_fork, operation, "client",
                        "this process was forked from the one that attached");
  }
  if (needed == Access::write && current->options().access != Access::write) {
    return client_error(ErrorCode::read_only, operation, "client", "it is attached for reading");
  }
  return std::nullopt;
}

Error about(Error failure, const Asked& asked) {
  failure.operation = asked.operation;
  failure.object = client::describe(asked.session, asked.epoch);
  return failure;
}

template <class T>
std::vector<std::expected<T, Refusal>> refuse_all(std::size_t count, const Error& error) {
  std::vector<std::expected<T, Refusal>> results;
  results.reserve(count);
  for (std::size_t i = 0; i < count; ++i) results.emplace_back(std::unexpected(error));
  return results;
}

Error incompatible(std::string_view operation, const Recipe& recipe, const Recipe& shards) {
  return client_error(ErrorCode::incompatible_recipe, operation,
                      "model \"" + shards.fields().model_id + "\"", recipe.difference_from(shards));
}

// Leases that a late reply to OPEN still brings are given back at once, unless they are shared.
client::LateHandlerOf give_back_late(const Attachment& attachment,
                                     std::span<const std::shared_ptr<Lease>> leases) {
  return [capacities = attachment.facts().capacities, leases](std::size_t first,
                                                              std::size_t count) {
    const auto part = leases.subspan(first, count);
    return [capacities, part = std::vector(part.begin(), part.end())](const client::Reply& reply) {
      for (std::size_t i = 0; i < part.size(); ++i) {
        const auto result = reply.result<protocol::OperationResult>(i);
        if (result.outcome != static_cast<std::uint32_t>(protocol::Outcome::done)) continue;
        if (const auto position = client::check_position(result, capacities)) {
          part[i]->stands_at(*position);
        }
      }
    };
  };
}

std::expected<client::Position, Refusal> position_of(const std::expected<Answer, Error>& answer,
                                                     const Asked& asked,
                                                     const Capacities& capacities) {
  if (!answer) return std::unexpected(about(answer.error(), asked));
  if (!answer->is_done()) return std::unexpected(answer->refusal(asked));
  const auto position = client::check_position(answer->untrusted_result, capacities);
  if (!position) return std::unexpected(about(position.error(), asked));
  return *position;
}

Error foreign_context(std::string_view operation) {
  return client_error(ErrorCode::invalid_argument, operation, "context",
                      "there is none, or it is another client's");
}

}  // namespace

std::expected<Client, Error> Client::attach(const ClientOptions& options, const Recipe& recipe) {
  auto current = client::CurrentAttachment::attach(options, recipe);
  if (!current) {
    Error error = std::move(current.error());
    if (error.operation.empty()) error.operation = "attach";
    if (error.object.empty()) error.object = "model \"" + recipe.fields().model_id + "\"";
    return std::unexpected(std::move(error));
  }
  return Client(std::move(*current));
}

Client::Client(std::shared_ptr<client::CurrentAttachment> current) : current_(std::move(current)) {}
Client::Client(Client&&) noexcept = default;
Client& Client::operator=(Client&& other) noexcept {
  if (this == &other) return *this;
  if (current_ != nullptr) current_->close();
  current_ = std::move(other.current_);
  return *this;
}
Client::~Client() {
  if (current_ != nullptr) current_->close();
}

const Recipe& Client::recipe() const {
  return current_->recipe();
}
std::uint32_t Client::chunk_tokens() const {
  return current_->chunk_tokens();
}
std::uint64_t Client::boot_token() const {
  return current_->boot_token();
}
bool Client::is_connected() const {
  return current_ != nullptr && !current_->is_foreign() && current_->is_connected();
}
bool Client::wait_connected(std::chrono::milliseconds wait) const {
  return current_ != nullptr && !current_->is_foreign() && current_->wait_connected(wait);
}

std::expected<Context, Refusal> Client::open(const SessionId& session, Epoch epoch,
                                             const Recipe* recipe) {
  if (recipe != nullptr && current_ != nullptr && *recipe != current_->recipe()) {
    return std::unexpected(incompatible("open", *recipe, current_->recipe()));
  }
  const std::array keys{ContextKey{session, epoch}};
  return std::move(open(keys).front());
}

std::vector<std::expected<Context, Refusal>> Client::open(std::span<const ContextKey> keys) {
  if (auto error = check_usable(current_.get(), "open", Access::write)) {
    return refuse_all<Context>(keys.size(), *error);
  }
  const std::shared_ptr<Attachment> attachment = current_->get();
  std::vector<protocol::OpenOperation> operations;
  std::vector<std::shared_ptr<Lease>> leases;
  for (const ContextKey& key : keys) {
    auto& operation = operations.emplace_back();
    operation.context = client::encode_name(key.session, key.epoch);
    std::ranges::copy(attachment->recipe().fingerprint(), operation.fingerprint);
    leases.push_back(std::make_shared<Lease>(attachment->leases().share(key.session, key.epoch)));
  }
  const auto answers =
      client::ask(attachment->connection(), protocol::Type::open,
                  std::span<const protocol::OpenOperation>(operations),
                  attachment->deadline_from_now(), give_back_late(*attachment, leases));

  std::vector<std::expected<Context, Refusal>> results;
  results.reserve(keys.size());
  for (std::size_t i = 0; i < keys.size(); ++i) {
    const auto position = position_of(answers[i], {"open", keys[i].session, keys[i].epoch},
                                      attachment->facts().capacities);
    if (!position) {
      results.push_back(std::unexpected(position.error()));
      continue;
    }
    leases[i]->stands_at(*position);
    results.push_back(
        Context(std::make_unique<Context::State>(attachment, std::move(*leases[i]), *position)));
  }
  return results;
}

std::expected<View, CacheMiss> Client::resolve(const SessionId& session, Epoch epoch,
                                               TokenCount expected, LengthMatch match) const {
  if (current_ == nullptr || current_->is_foreign()) {
    return std::unexpected(
        CacheMiss{session,
                  epoch,
                  match == LengthMatch::any ? std::nullopt : std::optional(expected),
                  MissReason::daemon_unavailable,
                  {},
                  {},
                  {},
                  current_ == nullptr ? ErrorCode::invalid_argument : ErrorCode::used_after_fork});
  }
  return Attachment::resolve(current_->get(), session, epoch, expected, match);
}

std::expected<View, Refusal> Client::resolve_as(const Recipe& recipe, const SessionId& session,
                                                Epoch epoch, TokenCount expected,
                                                LengthMatch match) const {
  if (current_ != nullptr && recipe != current_->recipe()) {
    return std::unexpected(incompatible("resolve", recipe, current_->recipe()));
  }
  auto view = resolve(session, epoch, expected, match);
  if (!view) return std::unexpected(std::move(view.error()));
  return std::move(*view);
}

std::expected<View, CacheMiss> Client::get(const SessionId& session, Epoch epoch) const {
  return resolve(session, epoch, TokenCount{0}, LengthMatch::any);
}

std::vector<std::expected<Writer, Refusal>> Client::append(
    std::span<const AppendRequest> requests) {
  if (auto error = check_usable(current_.get(), "append", Access::write)) {
    return refuse_all<Writer>(requests.size(), *error);
  }
  std::vector<client::AppendJob> jobs;
  for (const AppendRequest& request : requests) {
    const Context* const context = request.context;
    if (context == nullptr || context->state_ == nullptr ||
        &context->state_->attachment().client() != current_.get()) {
      return refuse_all<Writer>(requests.size(), foreign_context("append"));
    }
    jobs.push_back({request.context->state_.get(), request.tokens});
  }
  return client::append_all(jobs);
}

std::vector<std::expected<void, Refusal>> Client::truncate(
    std::span<const TruncateRequest> requests) {
  if (auto error = check_usable(current_.get(), "truncate", Access::write)) {
    return refuse_all<void>(requests.size(), *error);
  }
  std::vector<client::TruncateJob> jobs;
  for (const TruncateRequest& request : requests) {
    const Context* const context = request.context;
    if (context == nullptr || context->state_ == nullptr ||
        &context->state_->attachment().client() != current_.get()) {
      return refuse_all<void>(requests.size(), foreign_context("truncate"));
    }
    jobs.push_back({request.context->state_.get(), request.to});
  }
  return client::truncate_all(jobs);
}

std::expected<void, Refusal> Client::release(const SessionId& session, Epoch epoch) {
  const std::array keys{ContextKey{session, epoch}};
  return std::move(release(keys).front());
}

std::vector<std::expected<void, Refusal>> Client::release(std::span<const ContextKey> keys) {
  if (auto error = check_usable(current_.get(), "release")) {
    return refuse_all<void>(keys.size(), *error);
  }
  const std::shared_ptr<Attachment> attachment = current_->get();
  std::vector<protocol::ReleaseOperation> operations;
  for (const ContextKey& key : keys) {
    operations.push_back({client::encode_name(key.session, key.epoch), 0, 0});
  }
  const auto answers = client::ask(attachment->connection(), protocol::Type::release,
                                   std::span<const protocol::ReleaseOperation>(operations),
                                   attachment->deadline_from_now());
  std::vector<std::expected<void, Refusal>> results(keys.size());
  for (std::size_t i = 0; i < keys.size(); ++i) {
    const Asked asked{"release", keys[i].session, keys[i].epoch};
    if (!answers[i]) {
      results[i] = std::unexpected(about(answers[i].error(), asked));
    } else if (!answers[i]->is_done()) {
      results[i] = std::unexpected(answers[i]->refusal(asked));
    }
  }
  return results;
}

}  // namespace hotkv
