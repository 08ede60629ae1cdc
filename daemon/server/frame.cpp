#include "daemon/server/frame.hpp"

#include <algorithm>
#include <array>
#include <optional>
#include <utility>

namespace hotkv::server {
namespace {

using protocol::FrameHeader;
using protocol::OperationResult;
using protocol::Type;

struct TypeForm {
  Type type;
  std::size_t operation_bytes;
  std::size_t count_max;
};
constexpr std::array<TypeForm, 8> kForms{{
    {Type::hello, sizeof(protocol::HelloRequest), 1},
    {Type::attach, sizeof(protocol::AttachRequest), 1},
    {Type::open, sizeof(protocol::OpenOperation), protocol::kOperationsMax},
    {Type::append, sizeof(protocol::AppendOperation), protocol::kOperationsMax},
    {Type::truncate, sizeof(protocol::TruncateOperation), protocol::kOperationsMax},
    {Type::close, sizeof(protocol::CloseOperation), protocol::kOperationsMax},
    {Type::release, sizeof(protocol::ReleaseOperation), protocol::kOperationsMax},
    {Type::explain, sizeof(protocol::ExplainOperation), protocol::kOperationsMax},
}};

const TypeForm* form_of(std::uint16_t untrusted_type) {
  const auto found = std::ranges::find_if(kForms, [&](const TypeForm& form) {
    return static_cast<std::uint16_t>(form.type) == untrusted_type;
  });
  return found == kForms.end() ? nullptr : &*found;
}

Error malformed(std::string cause) {
  return Error{ErrorCode::protocol_error, "decode", "frame", std::move(cause), 0};
}

std::string expected_but_came(std::string_view field, std::string_view expected,
                              std::uint64_t came) {
  return std::string(field) + ": expected " + std::string(expected) + ", got " +
         std::to_string(came);
}

// The first thing wrong with a header, in words; nothing if it is right.
std::optional<std::string> header_fault(const FrameHeader& header, std::size_t frame_bytes) {
  if (header.length_bytes != frame_bytes) {
    return expected_but_came("length_bytes", std::to_string(frame_bytes), header.length_bytes);
  }
  const TypeForm* form = form_of(header.type);
  if (form == nullptr) return expected_but_came("type", "1 to 8", header.type);
  if (header.count == 0 || header.count > form->count_max) {
    return expected_but_came("count", "1 to " + std::to_string(form->count_max), header.count);
  }
  const std::size_t size = sizeof header + header.count * form->operation_bytes;
  if (size != frame_bytes) {
    return expected_but_came("frame", std::to_string(size) + " bytes", frame_bytes);
  }
  if (header.boot_token != 0) return expected_but_came("boot_token", "0", header.boot_token);
  if (header.status != 0) return expected_but_came("status", "0", header.status);
  if (header.text_bytes != 0) return expected_but_came("text_bytes", "0", header.text_bytes);
  return std::nullopt;
}

bool all_zero(std::span<const char> bytes) {
  return std::ranges::all_of(bytes, [](char byte) { return byte == 0; });
}

bool is_zero_padded(std::span<const char> field) {
  return all_zero(field.subspan(strnlen(field.data(), field.size())));
}

struct NamedContext {
  SessionId session;
  Epoch epoch;
};

std::expected<NamedContext, Error> decode_name(const protocol::ContextName& untrusted,
                                               std::uint32_t untrusted_reserved = 0) {
  if (untrusted.id_bytes == 0 || untrusted.id_bytes > SessionId::kBytesMax) {
    return std::unexpected(
        malformed(expected_but_came("id_bytes", "1 to 128", untrusted.id_bytes)));
  }
  const std::span<const char> id(reinterpret_cast<const char*>(untrusted.id), sizeof untrusted.id);
  if (!all_zero(id.subspan(untrusted.id_bytes))) {
    return std::unexpected(malformed("id: expected zeros behind its bytes"));
  }
  if (untrusted.reserved != 0 || untrusted_reserved != 0) {
    return std::unexpected(malformed("reserved: expected 0"));
  }
  auto session = SessionId::from({id.data(), untrusted.id_bytes});
  if (!session) return std::unexpected(std::move(session.error()));
  return NamedContext{*session, Epoch{untrusted.epoch}};
}

Fingerprint fingerprint_of(const std::byte (&bytes)[32]) {
  Fingerprint fingerprint;
  std::ranges::copy(bytes, fingerprint.begin());
  return fingerprint;
}

// What a client that knows its own operation and object still wants to hear.
std::string text_of(const Error& error) {
  return error.cause.empty() || error.os_errno != 0 ? error.message() : error.cause;
}

FrameBytes assemble(FrameHeader header, std::span<const std::byte> body, std::string_view text) {
  header.length_bytes = static_cast<std::uint32_t>(sizeof header + body.size() + text.size());
  header.text_bytes = static_cast<std::uint32_t>(text.size());
  FrameBytes frame(header.length_bytes);
  std::memcpy(frame.data(), &header, sizeof header);
  if (!body.empty()) std::memcpy(frame.data() + sizeof header, body.data(), body.size());
  if (!text.empty()) {
    std::memcpy(frame.data() + sizeof header + body.size(), text.data(), text.size());
  }
  return frame;
}

OperationResult miss_result(const CacheMiss& miss) {
  OperationResult result{};
  result.outcome = static_cast<std::uint32_t>(protocol::Outcome::miss);
  result.code = static_cast<std::uint32_t>(miss.reason);
  if (miss.known_epoch) {
    result.known |= protocol::kKnownEpoch;
    result.known_epoch = miss.known_epoch->value();
  }
  if (miss.known_length) {
    result.known |= protocol::kKnownLength;
    result.length_tokens = miss.known_length->value();
  }
  if (miss.age_ms) {
    result.known |= protocol::kKnownAge;
    result.age_ms = *miss.age_ms;
  }
  return result;
}

}  // namespace

std::expected<Request, FrameRefusal> decode_frame(std::span<const std::byte> untrusted_frame) {
  if (untrusted_frame.size() < sizeof(FrameHeader)) {
    return std::unexpected(FrameRefusal{
        0, 0,
        malformed(untrusted_frame.empty()
                      ? "an empty frame"
                      : expected_but_came("frame", "at least 32 bytes", untrusted_frame.size()))});
  }
  FrameHeader header;
  std::memcpy(&header, untrusted_frame.data(), sizeof header);
  if (auto fault = header_fault(header, untrusted_frame.size())) {
    return std::unexpected(
        FrameRefusal{header.type, header.request_id, malformed(std::move(*fault))});
  }
  return Request{static_cast<Type>(header.type), header.request_id, header.count,
                 untrusted_frame.subspan(sizeof header)};
}

std::expected<protocol::HelloRequest, Error> decode(const protocol::HelloRequest& untrusted) {
  if (untrusted.version_min > untrusted.version_max) {
    return std::unexpected(malformed("version range: its end comes before its start"));
  }
  return untrusted;
}

std::expected<AttachArguments, Error> decode(const protocol::AttachRequest& untrusted) {
  if (!is_zero_padded(untrusted.recipe.architecture) ||
      !is_zero_padded(untrusted.recipe.model_id)) {
    return std::unexpected(malformed("recipe: expected zeros behind its names"));
  }
  const auto access = static_cast<Access>(untrusted.access);
  if (access != Access::read && access != Access::write) {
    return std::unexpected(malformed(expected_but_came("access", "1 or 2", untrusted.access)));
  }
  if (untrusted.page == 0) {
    if (untrusted.cookie == 0) return AttachArguments{untrusted.recipe, access};
    return std::unexpected(malformed("cookie: expected 0 without a page"));
  }
  return AttachArguments{untrusted.recipe, access,
                         PageClaim{PageIndex{untrusted.page - 1}, untrusted.cookie}};
}

std::expected<OpenArguments, Error> decode(const protocol::OpenOperation& untrusted) {
  auto name = decode_name(untrusted.context);
  if (!name) return std::unexpected(std::move(name.error()));
  return OpenArguments{name->session, name->epoch, fingerprint_of(untrusted.fingerprint)};
}

std::expected<AppendArguments, Error> decode(const protocol::AppendOperation& untrusted) {
  auto name = decode_name(untrusted.context);
  if (!name) return std::unexpected(std::move(name.error()));
  return AppendArguments{name->session, name->epoch, Generation{untrusted.generation},
                         TokenCount{untrusted.up_to_tokens}};
}

std::expected<TruncateArguments, Error> decode(const protocol::TruncateOperation& untrusted) {
  auto name = decode_name(untrusted.context, untrusted.reserved);
  if (!name) return std::unexpected(std::move(name.error()));
  return TruncateArguments{name->session, name->epoch, Generation{untrusted.generation},
                           TokenCount{untrusted.from_tokens}, TokenCount{untrusted.to_tokens}};
}

std::expected<CloseArguments, Error> decode(const protocol::CloseOperation& untrusted) {
  auto name = decode_name(untrusted.context, untrusted.reserved);
  if (!name) return std::unexpected(std::move(name.error()));
  return CloseArguments{name->session, name->epoch, Generation{untrusted.generation}};
}

std::expected<ReleaseArguments, Error> decode(const protocol::ReleaseOperation& untrusted) {
  auto name = decode_name(untrusted.context);
  if (!name) return std::unexpected(std::move(name.error()));
  return ReleaseArguments{name->session, name->epoch, Generation{untrusted.generation},
                          SlotIndex{untrusted.slot}};
}

std::expected<ExplainArguments, Error> decode(const protocol::ExplainOperation& untrusted) {
  auto name = decode_name(untrusted.context);
  if (!name) return std::unexpected(std::move(name.error()));
  const auto match = static_cast<LengthMatch>(untrusted.match);
  if (match != LengthMatch::exact && match != LengthMatch::at_least && match != LengthMatch::any) {
    return std::unexpected(malformed(expected_but_came("match", "1 to 3", untrusted.match)));
  }
  return ExplainArguments{name->session, name->epoch, fingerprint_of(untrusted.fingerprint),
                          TokenCount{untrusted.expected_tokens}, match};
}

Reply::Reply(Type type, std::uint64_t request_id, std::size_t count)
    : type_(type), request_id_(request_id), results_(count) {}

void Reply::set(std::size_t index, const core::Position& position) {
  OperationResult& result = results_[index];
  result.slot = position.slot.value();
  result.generation = position.generation.value();
  result.tip = position.tip.bits();
  result.length_tokens = position.length.value();
  result.writable_tokens = position.writable.value();
}

void Reply::set(std::size_t index, const Refusal& refusal) {
  OperationResult& result = results_[index];
  if (refusal.is_miss()) {
    result = miss_result(refusal.miss());
    return;
  }
  result.outcome = static_cast<std::uint32_t>(protocol::Outcome::error);
  result.code = static_cast<std::uint32_t>(refusal.error().code);
  const std::string text = text_of(refusal.error());
  const std::size_t used = sizeof(FrameHeader) + results_.size() * sizeof(OperationResult);
  if (used + text_.size() + text.size() > protocol::kFrameBytesMax) return;
  result.text_offset = static_cast<std::uint32_t>(text_.size());
  result.text_bytes = static_cast<std::uint32_t>(text.size());
  text_ += text;
}

void Reply::set(std::size_t index, const core::Outcome<core::Position>& outcome) {
  outcome ? set(index, *outcome) : set(index, outcome.error());
}

void Reply::set(std::size_t index, const core::Outcome<void>& outcome) {
  if (!outcome) set(index, outcome.error());
}

FrameBytes Reply::encode(std::uint64_t boot_token) const {
  FrameHeader header{};
  header.type = static_cast<std::uint16_t>(type_);
  header.count = static_cast<std::uint16_t>(results_.size());
  header.request_id = request_id_;
  header.boot_token = boot_token;
  return assemble(header, std::as_bytes(std::span(results_)), text_);
}

FrameBytes encode_refusal(const FrameRefusal& refusal, std::uint64_t boot_token) {
  FrameHeader header{};
  header.type = refusal.type;
  header.request_id = refusal.request_id;
  header.boot_token = boot_token;
  header.status = static_cast<std::uint32_t>(refusal.error.code);
  const std::string text = text_of(refusal.error);
  return assemble(header, {},
                  std::string_view(text).substr(0, protocol::kFrameBytesMax - sizeof header));
}

FrameBytes encode_body(const Request& request, std::uint64_t boot_token,
                       std::span<const std::byte> body) {
  FrameHeader header{};
  header.type = static_cast<std::uint16_t>(request.type);
  header.count = 1;
  header.request_id = request.request_id;
  header.boot_token = boot_token;
  return assemble(header, body, {});
}

}  // namespace hotkv::server
