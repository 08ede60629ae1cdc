#include <hotkv/cache_miss.hpp>

#include <algorithm>
#include <bit>
#include <cstring>
#include <type_traits>

namespace hotkv {
namespace {

struct ReasonName {
  MissReason reason;
  std::string_view name;
};

constexpr ReasonName kReasonNames[] = {
    {MissReason::unknown_session, "unknown-session"},
    {MissReason::evicted_ttl, "evicted-ttl"},
    {MissReason::evicted_lru, "evicted-lru"},
    {MissReason::released, "released"},
    {MissReason::superseded_epoch, "superseded-epoch"},
    {MissReason::seq_len_mismatch, "seq-len-mismatch"},
    {MissReason::daemon_unavailable, "daemon-unavailable"},
    {MissReason::admin_evicted, "admin-evicted"},
    {MissReason::lost_in_restart, "lost-in-restart"},
};

// The bytes form. It outlives the process that wrote it (logs, other languages), so it has a
// version of its own. Everything that is not in use is zero, so equal misses have equal bytes.
constexpr std::uint32_t kRecordVersion = 1;
constexpr std::uint32_t kHasExpectedLength = 1;
constexpr std::uint32_t kHasKnownEpoch = 2;
constexpr std::uint32_t kHasKnownLength = 4;
constexpr std::uint32_t kHasAge = 8;
constexpr std::uint32_t kHasCause = 16;
constexpr std::uint32_t kFlagsAll = 31;

struct MissRecord {
  std::uint32_t version;  // kRecordVersion
  std::uint32_t flags;    // which of the optional fields are there
  std::uint32_t reason;   // MissReason
  std::uint32_t cause;    // ErrorCode
  std::uint64_t epoch;
  std::uint64_t known_epoch;
  std::uint64_t age_ms;
  std::uint32_t expected_length;
  std::uint32_t known_length;
  std::uint32_t id_bytes;  // 1 to 128
  std::uint32_t reserved;
  char id[SessionId::kBytesMax];  // zero-padded
};
static_assert(std::endian::native == std::endian::little, "the record is little-endian");
static_assert(sizeof(MissRecord) == 184 && offsetof(MissRecord, id) == 56 &&
              std::has_unique_object_representations_v<MissRecord>);

Error refuse(std::string field, std::string cause) {
  return Error{ErrorCode::invalid_argument, "decode cache miss", std::move(field),
               std::move(cause)};
}

std::string number_is(std::uint64_t number) {
  return "is " + std::to_string(number);
}

bool is_zero(std::span<const char> bytes) {
  return std::ranges::all_of(bytes, [](char c) { return c == '\0'; });
}

// Takes one optional field out of a record; false if its bytes are not zero though it is absent.
template <class Target, class Bare>
bool take(const MissRecord& record, std::uint32_t flag, Bare bare, std::optional<Target>& target) {
  if ((record.flags & flag) == 0) return bare == 0;
  target = static_cast<Target>(bare);
  return true;
}

// What is wrong with a record beside its optional fields and its session, or nothing.
std::optional<Error> first_bad_field(const MissRecord& record) {
  if (record.version != kRecordVersion) return refuse("version", number_is(record.version));
  if ((record.flags & ~kFlagsAll) != 0) return refuse("flags", number_is(record.flags));
  if (!miss_reason_from_number(record.reason)) return refuse("reason", number_is(record.reason));
  if ((record.flags & kHasCause) != 0 && !error_code_from_number(record.cause)) {
    return refuse("cause", number_is(record.cause));
  }
  if (record.id_bytes == 0 || record.id_bytes > SessionId::kBytesMax) {
    return refuse("session", "has " + std::to_string(record.id_bytes) + " bytes");
  }
  if (!is_zero(std::span(record.id).subspan(record.id_bytes))) {
    return refuse("session", "has bytes behind its end");
  }
  if (record.reserved != 0) return refuse("reserved", number_is(record.reserved));
  return std::nullopt;
}

}  // namespace

std::string_view to_string(MissReason reason) {
  const auto* found = std::ranges::find(kReasonNames, reason, &ReasonName::reason);
  return found == std::end(kReasonNames) ? "unknown-reason" : found->name;
}

std::optional<MissReason> miss_reason_from_name(std::string_view name) {
  const auto* found = std::ranges::find(kReasonNames, name, &ReasonName::name);
  if (found == std::end(kReasonNames)) return std::nullopt;
  return found->reason;
}

std::optional<MissReason> miss_reason_from_number(std::uint32_t number) {
  const auto reason = static_cast<MissReason>(number);
  const auto* found = std::ranges::find(kReasonNames, reason, &ReasonName::reason);
  if (found == std::end(kReasonNames)) return std::nullopt;
  return found->reason;
}

std::string CacheMiss::message() const {
  std::string text = "session " + session.escaped() + " epoch " + std::to_string(epoch.value()) +
                     ": " + std::string(to_string(reason));
  if (expected_length) text += ", expected length " + std::to_string(expected_length->value());
  if (known_length) {
    text += reason == MissReason::seq_len_mismatch ? ", length " : ", last length ";
    text += std::to_string(known_length->value());
  }
  if (known_epoch && *known_epoch != epoch) {
    text += ", highest epoch " + std::to_string(known_epoch->value());
  }
  if (age_ms) text += ", " + std::to_string(*age_ms) + " ms ago";
  if (cause) text += ", cause " + std::string(to_string(*cause));
  return text;
}

std::vector<std::byte> CacheMiss::to_bytes() const {
  MissRecord record{};
  record.version = kRecordVersion;
  record.flags = (expected_length ? kHasExpectedLength : 0) | (known_epoch ? kHasKnownEpoch : 0) |
                 (known_length ? kHasKnownLength : 0) | (age_ms ? kHasAge : 0) |
                 (cause ? kHasCause : 0);
  record.reason = static_cast<std::uint32_t>(reason);
  record.cause = cause ? static_cast<std::uint32_t>(*cause) : 0;
  record.epoch = epoch.value();
  record.known_epoch = known_epoch.value_or(Epoch{}).value();
  record.age_ms = age_ms.value_or(0);
  record.expected_length = expected_length.value_or(TokenCount{}).value();
  record.known_length = known_length.value_or(TokenCount{}).value();
  record.id_bytes = session.size_bytes();
  std::ranges::copy(session.bytes(), record.id);

  std::vector<std::byte> bytes(sizeof(record));
  std::memcpy(bytes.data(), &record, sizeof(record));
  return bytes;
}

std::expected<CacheMiss, Error> CacheMiss::from_bytes(std::span<const std::byte> bytes) {
  MissRecord record;
  if (bytes.size() != sizeof(record)) {
    return std::unexpected(refuse("size", "must be " + std::to_string(sizeof(record)) +
                                              " bytes, is " + std::to_string(bytes.size())));
  }
  std::memcpy(&record, bytes.data(), sizeof(record));
  if (auto bad = first_bad_field(record)) return std::unexpected(std::move(*bad));
  auto session = SessionId::from({record.id, record.id_bytes});
  if (!session) return std::unexpected(std::move(session).error());

  CacheMiss miss{.session = *session,
                 .epoch = Epoch{record.epoch},
                 .expected_length = {},
                 .reason = static_cast<MissReason>(record.reason),
                 .known_epoch = {},
                 .known_length = {},
                 .age_ms = {},
                 .cause = {}};
  const char* misplaced =
      !take(record, kHasExpectedLength, record.expected_length, miss.expected_length)
          ? "expected_length"
      : !take(record, kHasKnownEpoch, record.known_epoch, miss.known_epoch)    ? "known_epoch"
      : !take(record, kHasKnownLength, record.known_length, miss.known_length) ? "known_length"
      : !take(record, kHasAge, record.age_ms, miss.age_ms)                     ? "age_ms"
      : !take(record, kHasCause, record.cause, miss.cause)                     ? "cause"
                                                                               : nullptr;
  if (misplaced != nullptr) {
    return std::unexpected(refuse(misplaced, "is not zero, though the flags say it is absent"));
  }
  return miss;
}

}  // namespace hotkv
