#pragma once
// Frames of the control protocol: from untrusted bytes to checked arguments, and from outcomes to
// bytes. Nothing of a frame is acted on before all of it has been checked.

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
#include <hotkv/recipe.hpp>
#include <hotkv/types.hpp>

#include "daemon/core/core.hpp"
#include "shared/protocol.hpp"

namespace hotkv::server {

// ---- requests -----------------------------------------------------------------------------------

// A frame whose header and size are right; what is in its operations is still untrusted.
struct Request {
  protocol::Type type;
  std::uint64_t request_id;
  std::size_t count;                          // operations
  std::span<const std::byte> untrusted_body;  // exactly `count` operations of this type
};

// Why a frame is refused as a whole, and what its answer must repeat: zeros if the frame is shorter
// than a header.
struct FrameRefusal {
  std::uint16_t type = 0;
  std::uint64_t request_id = 0;
  Error error;
};

// Errors: protocol_error naming the field, with what was expected and what came.
[[nodiscard]] std::expected<Request, FrameRefusal> decode_frame(
    std::span<const std::byte> untrusted_frame);

// Arguments of the operations, checked: ids of 1 to 128 bytes with zeros behind, reserved fields
// zero, enumerators known. Numbers of tokens and generations are whatever the client sent.
// A page that the sender says it has.
struct PageClaim {
  PageIndex page;
  std::uint64_t cookie;
};
struct AttachArguments {
  RecipeRecord recipe;  // padding checked; the fields are Recipe::make's to check
  Access access;
  std::optional<PageClaim> earlier_page{};  // it comes back
};
struct OpenArguments {
  SessionId session;
  Epoch epoch;
  Fingerprint fingerprint;
};
struct AppendArguments {
  SessionId session;
  Epoch epoch;
  Generation generation;
  TokenCount up_to;
};
struct TruncateArguments {
  SessionId session;
  Epoch epoch;
  Generation generation;
  TokenCount from;
  TokenCount to;
};
struct CloseArguments {
  SessionId session;
  Epoch epoch;
  Generation generation;
};
struct ReleaseArguments {
  SessionId session;
  Epoch epoch;
  Generation generation;
  SlotIndex slot;
};
struct ExplainArguments {
  SessionId session;
  Epoch epoch;
  Fingerprint fingerprint;
  TokenCount expected;
  LengthMatch match;
};

// Errors: protocol_error naming the field.
[[nodiscard]] std::expected<protocol::HelloRequest, Error> decode(
    const protocol::HelloRequest& untrusted);
[[nodiscard]] std::expected<AttachArguments, Error> decode(
    const protocol::AttachRequest& untrusted);
[[nodiscard]] std::expected<OpenArguments, Error> decode(const protocol::OpenOperation& untrusted);
[[nodiscard]] std::expected<AppendArguments, Error> decode(
    const protocol::AppendOperation& untrusted);
[[nodiscard]] std::expected<TruncateArguments, Error> decode(
    const protocol::TruncateOperation& untrusted);
[[nodiscard]] std::expected<CloseArguments, Error> decode(
    const protocol::CloseOperation& untrusted);
[[nodiscard]] std::expected<ReleaseArguments, Error> decode(
    const protocol::ReleaseOperation& untrusted);
[[nodiscard]] std::expected<ExplainArguments, Error> decode(
    const protocol::ExplainOperation& untrusted);

template <class Operation>
using ArgumentsOf = typename decltype(decode(std::declval<const Operation&>()))::value_type;

// All operations of a request, or the first error. `Operation` belongs to the request's type.
template <class Operation>
[[nodiscard]] std::expected<std::vector<ArgumentsOf<Operation>>, Error> decode_operations(
    const Request& request) {
  std::vector<ArgumentsOf<Operation>> operations;
  operations.reserve(request.count);
  for (std::size_t index = 0; index < request.count; ++index) {
    Operation untrusted;
    std::memcpy(&untrusted, request.untrusted_body.data() + index * sizeof untrusted,
                sizeof untrusted);
    auto arguments = decode(untrusted);
    if (!arguments) {
      arguments.error().cause =
          "operation " + std::to_string(index) + ": " + arguments.error().cause;
      return std::unexpected(std::move(arguments.error()));
    }
    operations.push_back(*std::move(arguments));
  }
  return operations;
}

// ---- replies ------------------------------------------------------------------------------------

using FrameBytes = std::vector<std::byte>;

// The results of one request, in the order of its operations, set in any order.
class Reply {
 public:
  Reply(protocol::Type type, std::uint64_t request_id, std::size_t count);

  // Each index below `count`, once.
  void set(std::size_t index, const core::Position& position);
  void set(std::size_t index, const Refusal& refusal);
  void set(std::size_t index, const core::Outcome<core::Position>& outcome);
  void set(std::size_t index, const core::Outcome<void>& outcome);

  // At most kFrameBytesMax: texts that no longer fit are left out, the codes stay.
  [[nodiscard]] FrameBytes encode(std::uint64_t boot_token) const;

 private:
  protocol::Type type_;
  std::uint64_t request_id_;
  std::vector<protocol::OperationResult> results_;
  std::string text_;
};

// The answer to a whole frame that was refused: no results, only a text.
[[nodiscard]] FrameBytes encode_refusal(const FrameRefusal& refusal, std::uint64_t boot_token);

// A reply with a body of its own: HELLO and ATTACH.
[[nodiscard]] FrameBytes encode_body(const Request& request, std::uint64_t boot_token,
                                     std::span<const std::byte> body);
template <class Body>
[[nodiscard]] FrameBytes encode_body(const Request& request, std::uint64_t boot_token,
                                     const Body& body) {
  static_assert(std::has_unique_object_representations_v<Body>);
  return encode_body(request, boot_token, std::as_bytes(std::span(&body, 1)));
}

}  // namespace hotkv::server
