#include <array>
#include <utility>

#include <hotkv/client.hpp>

#include "client/library/held_context.hpp"

namespace hotkv {
namespace {

Error moved_from(const char* operation) {
  return Error{ErrorCode::invalid_argument, operation, "context", "it was moved from"};
}

}  // namespace

Context::Context(std::unique_ptr<State> state) : state_(std::move(state)) {}
Context::Context(Context&&) noexcept = default;
Context& Context::operator=(Context&&) noexcept = default;
Context::~Context() = default;

const SessionId& Context::session() const {
  return state_->session();
}
Epoch Context::epoch() const {
  return state_->epoch();
}
TokenCount Context::length() const {
  return state_ == nullptr ? TokenCount{0} : state_->length();
}
TokenCount Context::granted() const {
  return state_ == nullptr ? TokenCount{0} : state_->granted();
}

std::expected<Writer, Refusal> Context::append(TokenCount tokens) {
  if (state_ == nullptr) return std::unexpected(moved_from("append"));
  auto attempt = state_->try_append(tokens);
  if (auto* settled = std::get_if<client::HeldContext::Settled>(&attempt)) {
    return std::move(*settled);
  }
  const std::array jobs{client::AppendJob{state_.get(), tokens}};
  return std::move(client::append_all(jobs).front());
}

std::expected<void, Refusal> Context::reserve(TokenCount tokens) {
  if (state_ == nullptr) return std::unexpected(moved_from("reserve"));
  return client::reserve(*state_, tokens);
}

std::expected<void, Refusal> Context::truncate(TokenCount to) {
  if (state_ == nullptr) return std::unexpected(moved_from("truncate"));
  const std::array jobs{client::TruncateJob{state_.get(), to}};
  return std::move(client::truncate_all(jobs).front());
}

std::expected<void, Refusal> Context::release() {
  if (state_ == nullptr) return std::unexpected(moved_from("release"));
  return state_->release();
}

std::expected<void, Refusal> Context::close() {
  if (state_ == nullptr) return std::unexpected(moved_from("close"));
  return state_->close();
}

}  // namespace hotkv
