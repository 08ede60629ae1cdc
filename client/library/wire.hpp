#pragma once
// Requests out, replies in: the frames of the control protocol as this side sees them.

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <expected>
#include <span>
#include <string>
#include <string_view>
#include <type_traits>
#include <vector>

#include <hotkv/cache_miss.hpp>
#include <hotkv/error.hpp>
#include <hotkv/types.hpp>

#include "shared/protocol.hpp"

namespace hotkv::client {

using Frame = std::vector<std::byte>;

[[nodiscard]] protocol::ContextName encode_name(const SessionId& session, Epoch epoch);

// `session "a" epoch 3`, the object of errors.
[[nodiscard]] std::string describe(const SessionId& session, Epoch epoch);

// A request of one type; the connection puts in the id.
class Request {
 public:
  explicit Request(protocol::Type type) : type_(type) {
    frame_.resize(sizeof(protocol::FrameHeader));
  }
  // Appends one operation. At most kOperationsMax.
  template <class Operation>
  void add(const Operation& operation) {
    static_assert(std::has_unique_object_representations_v<Operation>);
    const auto bytes = std::as_bytes(std::span(&operation, 1));
    frame_.insert(frame_.end(), bytes.begin(), bytes.end());
    ++count_;
  }
  [[nodiscard]] protocol::Type type() const { return type_; }
  [[nodiscard]] std::uint16_t count() const { return count_; }
  [[nodiscard]] bool is_full() const { return count_ == protocol::kOperationsMax; }
  // The finished frame.
  [[nodiscard]] Frame seal(std::uint64_t request_id) &&;

 private:
  protocol::Type type_;
  std::uint16_t count_ = 0;
  Frame frame_;
};

// One frame from the daemon, which may be broken or hostile: what it says is checked on the way
// out.
class Reply {
 public:
  // Errors: protocol_error naming the size that is wrong.
  [[nodiscard]] static std::expected<Reply, Error> parse(
      std::span<const std::byte> untrusted_frame);

  [[nodiscard]] const protocol::FrameHeader& header() const { return header_; }
  // Is it the daemon's failure of a whole frame?
  [[nodiscard]] bool is_failure() const { return header_.status != 0; }
  // Of a failure: its code and text.
  [[nodiscard]] Error failure() const;

  // Does it carry `count` results of `Result`, and nothing else, for a request of `type`?
  // Errors: the failure it carries; protocol_error.
  [[nodiscard]] std::expected<void, Error> check(protocol::Type type, std::uint16_t count,
                                                 std::size_t result_bytes) const;
  // A result, after check().
  template <class Result>
  [[nodiscard]] Result result(std::size_t index) const {
    Result value;
    std::memcpy(&value, body_.data() + index * sizeof(Result), sizeof(Result));
    return value;
  }
  // The words that a result points to; empty where it points out of the text.
  [[nodiscard]] std::string_view text_of(const protocol::OperationResult& untrusted_result) const;

 private:
  Reply() = default;
  protocol::FrameHeader header_{};
  Frame body_;  // results, then text
};

// What an operation was about, for the miss or the error it may end with.
struct Asked {
  std::string_view operation;
  const SessionId& session;
  Epoch epoch;
  std::optional<TokenCount> expected_length = std::nullopt;
};

// A result that is not "done", as the caller sees it. A number that means nothing becomes
// protocol_error.
[[nodiscard]] Refusal refusal_of(const Reply& reply,
                                 const protocol::OperationResult& untrusted_result,
                                 const Asked& asked);

}  // namespace hotkv::client
