#include "client/library/wire.hpp"

#include <algorithm>
#include <utility>

namespace hotkv::client {
namespace {

using protocol::FrameHeader;
using protocol::OperationResult;

Error malformed(std::string cause) {
  return Error{ErrorCode::protocol_error, "read", "reply", std::move(cause)};
}

CacheMiss miss_of(const OperationResult& result, MissReason reason, const Asked& asked) {
  CacheMiss miss{asked.session, asked.epoch, asked.expected_length, reason, {}, {}, {}, {}};
  if ((result.known & protocol::kKnownEpoch) != 0) miss.known_epoch = Epoch{result.known_epoch};
  if ((result.known & protocol::kKnownLength) != 0) {
    miss.known_length = TokenCount{result.length_tokens};
  }
  if ((result.known & protocol::kKnownAge) != 0) miss.age_ms = result.age_ms;
  return miss;
}

}  // namespace

protocol::ContextName encode_name(const SessionId& session, Epoch epoch) {
  protocol::ContextName name{};
  name.epoch = epoch.value();
  name.id_bytes = session.size_bytes();
  std::ranges::copy(session.words(), name.id);
  return name;
}

std::string describe(const SessionId& session, Epoch epoch) {
  return "session \"" + session.escaped() + "\" epoch " + std::to_string(epoch.value());
}

Frame Request::seal(std::uint64_t request_id) && {
  FrameHeader header{};
  header.length_bytes = static_cast<std::uint32_t>(frame_.size());
  header.type = static_cast<std::uint16_t>(type_);
  header.count = count_;
  header.request_id = request_id;
  std::memcpy(frame_.data(), &header, sizeof header);
  return std::move(frame_);
}

std::expected<Reply, Error> Reply::parse(std::span<const std::byte> untrusted_frame) {
  if (untrusted_frame.size() < sizeof(FrameHeader)) {
    return std::unexpected(malformed("a frame of " + std::to_string(untrusted_frame.size()) +
                                     " bytes is shorter than its header"));
  }
  Reply reply;
  std::memcpy(&reply.header_, untrusted_frame.data(), sizeof(FrameHeader));
  const auto body = untrusted_frame.subspan(sizeof(FrameHeader));
  if (reply.header_.length_bytes != untrusted_frame.size()) {
    return std::unexpected(
        malformed("the header says " + std::to_string(reply.header_.length_bytes) +
                  " bytes, the frame has " + std::to_string(untrusted_frame.size())));
  }
  if (reply.header_.text_bytes > body.size()) {
    return std::unexpected(malformed("text of " + std::to_string(reply.header_.text_bytes) +
                                     " bytes does not fit a body of " +
                                     std::to_string(body.size())));
  }
  reply.body_.assign(body.begin(), body.end());
  return reply;
}

Error Reply::failure() const {
  const auto code = error_code_from_number(header_.status);
  if (!code) return malformed("status " + std::to_string(header_.status) + " is no error code");
  const auto* text = reinterpret_cast<const char*>(body_.data() + body_.size());
  return Error{*code, {}, {}, std::string(text - header_.text_bytes, header_.text_bytes)};
}

std::expected<void, Error> Reply::check(protocol::Type type, std::uint16_t count,
                                        std::size_t result_bytes) const {
  if (header_.type != static_cast<std::uint16_t>(type)) {
    return std::unexpected(malformed("type " + std::to_string(header_.type) +
                                     " answers a request of type " +
                                     std::to_string(static_cast<std::uint16_t>(type))));
  }
  if (is_failure()) return std::unexpected(failure());
  if (header_.count != count || body_.size() - header_.text_bytes != count * result_bytes) {
    return std::unexpected(malformed(std::to_string(header_.count) + " results in " +
                                     std::to_string(body_.size() - header_.text_bytes) +
                                     " bytes, expected " + std::to_string(count) + " of " +
                                     std::to_string(result_bytes) + " bytes"));
  }
  return {};
}

std::string_view Reply::text_of(const OperationResult& untrusted_result) const {
  const std::uint32_t offset = untrusted_result.text_offset;
  const std::uint32_t size = untrusted_result.text_bytes;
  if (offset > header_.text_bytes || size > header_.text_bytes - offset) return {};
  const auto* end = reinterpret_cast<const char*>(body_.data() + body_.size());
  return {end - header_.text_bytes + offset, size};
}

Refusal refusal_of(const Reply& reply, const OperationResult& untrusted_result,
                   const Asked& asked) {
  Error error{ErrorCode::protocol_error,
              std::string(asked.operation),
              describe(asked.session, asked.epoch),
              {}};
  if (untrusted_result.outcome == static_cast<std::uint32_t>(protocol::Outcome::miss)) {
    if (const auto reason = miss_reason_from_number(untrusted_result.code)) {
      return miss_of(untrusted_result, *reason, asked);
    }
    error.cause =
        "the daemon gave no reason of a miss but " + std::to_string(untrusted_result.code);
  } else if (untrusted_result.outcome == static_cast<std::uint32_t>(protocol::Outcome::error)) {
    if (const auto code = error_code_from_number(untrusted_result.code)) {
      error.code = *code;
      error.cause = reply.text_of(untrusted_result);
    } else {
      error.cause = "the daemon gave no error code but " + std::to_string(untrusted_result.code);
    }
  } else {
    error.cause = "the daemon gave no outcome but " + std::to_string(untrusted_result.outcome);
  }
  return error;
}

}  // namespace hotkv::client
