#pragma once
// Any number of operations of one kind, in messages of up to 256, and the answer to each.

#include <algorithm>
#include <cstddef>
#include <expected>
#include <functional>
#include <memory>
#include <span>
#include <utility>
#include <vector>

#include "client/library/connection.hpp"
#include "client/library/wire.hpp"
#include "shared/protocol.hpp"

namespace hotkv::client {

// One operation's result and the reply it stands in.
struct Answer {
  std::shared_ptr<const Reply> reply;
  protocol::OperationResult untrusted_result;

  [[nodiscard]] bool is_done() const {
    return untrusted_result.outcome == static_cast<std::uint32_t>(protocol::Outcome::done);
  }
  // Only if not is_done().
  [[nodiscard]] Refusal refusal(const Asked& asked) const {
    return refusal_of(*reply, untrusted_result, asked);
  }
};

// For the message of operations [first, first + count): what to do if its reply comes too late.
using LateHandlerOf = std::function<Connection::LateHandler(std::size_t first, std::size_t count)>;

// Answer i belongs to operation i. All messages are sent before the first reply is waited for, so
// the deadline is one for all of them.
template <class Operation>
[[nodiscard]] std::vector<std::expected<Answer, Error>> ask(
    Connection& connection, protocol::Type type, std::span<const Operation> operations,
    Deadline deadline, const LateHandlerOf& late_handler_of = {}) {
  std::vector<Connection::Pending> pending;
  for (std::size_t first = 0; first < operations.size(); first += protocol::kOperationsMax) {
    const auto part = operations.subspan(
        first, std::min<std::size_t>(protocol::kOperationsMax, operations.size() - first));
    Request request(type);
    for (const Operation& operation : part) request.add(operation);
    pending.push_back(
        connection.submit(std::move(request), late_handler_of ? late_handler_of(first, part.size())
                                                              : Connection::LateHandler{}));
  }
  std::vector<std::expected<Answer, Error>> answers;
  answers.reserve(operations.size());
  for (Connection::Pending& one : pending) {
    const std::size_t count =
        std::min<std::size_t>(protocol::kOperationsMax, operations.size() - answers.size());
    auto reply = connection.await(std::move(one), deadline);
    if (!reply) {
      answers.insert(answers.end(), count, std::unexpected(reply.error()));
      continue;
    }
    const auto shared = std::make_shared<const Reply>(std::move(*reply));
    for (std::size_t index = 0; index < count; ++index) {
      answers.push_back(Answer{shared, shared->result<protocol::OperationResult>(index)});
    }
  }
  return answers;
}

}  // namespace hotkv::client
