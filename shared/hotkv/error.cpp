#include <hotkv/error.hpp>

#include <cerrno>
#include <system_error>
#include <utility>

namespace hotkv {
namespace {

constexpr std::string_view kUnknownError = "unknown-error";

}  // namespace

std::string_view to_string(ErrorCode code) {
  switch (code) {
    case ErrorCode::invalid_argument: return "invalid-argument";
    case ErrorCode::protocol_error: return "protocol-error";
    case ErrorCode::unsupported_version: return "unsupported-version";
    case ErrorCode::not_attached: return "not-attached";
    case ErrorCode::already_attached: return "already-attached";
    case ErrorCode::access_denied: return "access-denied";
    case ErrorCode::uncertified_architecture: return "uncertified-architecture";
    case ErrorCode::incompatible_recipe: return "incompatible-recipe";
    case ErrorCode::stale_epoch: return "stale-epoch";
    case ErrorCode::session_busy: return "session-busy";
    case ErrorCode::lease_lost: return "lease-lost";
    case ErrorCode::length_mismatch: return "length-mismatch";
    case ErrorCode::budget_exceeded: return "budget-exceeded";
    case ErrorCode::too_many_sessions: return "too-many-sessions";
    case ErrorCode::too_many_connections: return "too-many-connections";
    case ErrorCode::too_many_shards: return "too-many-shards";
    case ErrorCode::too_many_clients: return "too-many-clients";
    case ErrorCode::too_many_waiting: return "too-many-waiting";
    case ErrorCode::memory_unavailable: return "memory-unavailable";
    case ErrorCode::daemon_unavailable: return "daemon-unavailable";
    case ErrorCode::deadline_exceeded: return "deadline-exceeded";
    case ErrorCode::system_error: return "system-error";
    case ErrorCode::shard_damaged: return "shard-damaged";
    case ErrorCode::shutting_down: return "shutting-down";
    case ErrorCode::used_after_fork: return "used-after-fork";
    case ErrorCode::read_only: return "read-only";
    case ErrorCode::generations_exhausted: return "generations-exhausted";
    case ErrorCode::too_many_pins: return "too-many-pins";
    case ErrorCode::address_in_use: return "address-in-use";
    case ErrorCode::configuration_error: return "configuration-error";
    case ErrorCode::shard_replaced: return "shard-replaced";
  }
  return kUnknownError;
}

std::optional<ErrorCode> error_code_from_name(std::string_view name) {
  for (std::uint32_t number = 1; number < kErrorCodes; ++number) {
    const auto code = static_cast<ErrorCode>(number);
    if (to_string(code) == name) return code;
  }
  return std::nullopt;
}

std::optional<ErrorCode> error_code_from_number(std::uint32_t number) {
  if (number == 0 || number >= kErrorCodes) return std::nullopt;
  return static_cast<ErrorCode>(number);
}

std::string Error::message() const {
  std::string text = operation;
  if (!object.empty()) text += " " + object;
  text += ": ";
  text += to_string(code);
  if (!cause.empty()) text += ": " + cause;
  if (os_errno != 0) text += ": " + std::generic_category().message(os_errno);
  return text;
}

Error system_error(std::string operation, std::string object, int os_errno) {
  const int number = os_errno < 0 ? errno : os_errno;
  // What a sandbox says to a call that it does not allow; nothing else tells that it is one.
  std::string cause = number == EPERM ? "a security policy may forbid the call" : "";
  return Error{ErrorCode::system_error, std::move(operation), std::move(object), std::move(cause),
               number};
}

}  // namespace hotkv
