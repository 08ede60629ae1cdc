#pragma once
// A miss: a value, never an error. It says why, and what is still known.

#include <cstddef>
#include <cstdint>
#include <expected>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include <hotkv/error.hpp>
#include <hotkv/types.hpp>

namespace hotkv {

// Why there is no KV to read. Numbers are on the wire and in the ledger; never reused, never 0.
enum class MissReason : std::uint32_t {
  unknown_session = 1,   // never opened with this epoch, or forgotten
  evicted_ttl = 2,       // unused for longer than the time to live
  evicted_lru = 3,       // least recently used when the session cap or the byte budget was reached
  released = 4,          // a client released it
  superseded_epoch = 5,  // the session went on with a higher epoch
  seq_len_mismatch = 6,  // it is there, with another length than expected
  daemon_unavailable = 7,  // hotkv could not be asked, so nobody can say; see CacheMiss::cause
  admin_evicted = 8,       // an operator evicted it
  lost_in_restart = 9,     // the daemon's restart could not keep it
};

[[nodiscard]] std::string_view to_string(MissReason reason);
[[nodiscard]] std::optional<MissReason> miss_reason_from_name(std::string_view name);
[[nodiscard]] std::optional<MissReason> miss_reason_from_number(std::uint32_t number);

// What was asked, why it missed, and what is known of the session's last context.
struct CacheMiss {
  SessionId session;
  Epoch epoch;                                // asked for
  std::optional<TokenCount> expected_length;  // asked for, where a length was asked for
  MissReason reason;
  std::optional<Epoch> known_epoch;        // the highest epoch that is remembered
  std::optional<TokenCount> known_length;  // the published length, or the last one there was
  std::optional<std::uint64_t> age_ms;     // how long ago the context ended
  std::optional<ErrorCode> cause;          // daemon_unavailable: what stood in the way

  // "session a epoch 3: evicted-ttl, last length 120, 4000 ms ago"
  [[nodiscard]] std::string message() const;

  // Serialised forms; decoding gives back an equal value.
  // Errors: invalid_argument naming the first thing wrong (size, reason, flags, JSON key).
  [[nodiscard]] std::vector<std::byte> to_bytes() const;
  [[nodiscard]] static std::expected<CacheMiss, Error> from_bytes(std::span<const std::byte> bytes);
  [[nodiscard]] std::string to_json() const;
  [[nodiscard]] static std::expected<CacheMiss, Error> from_json(std::string_view text);

  friend bool operator==(const CacheMiss&, const CacheMiss&) = default;
};

// Why an operation on a context did not happen: its context is not there (a miss), or an error.
class [[nodiscard]] Refusal {
 public:
  Refusal(CacheMiss miss) : what_(std::move(miss)) {}  // NOLINT: either converts by itself
  Refusal(Error error) : what_(std::move(error)) {}    // NOLINT

  [[nodiscard]] bool is_miss() const { return std::holds_alternative<CacheMiss>(what_); }
  // Only if is_miss().
  [[nodiscard]] const CacheMiss& miss() const { return std::get<CacheMiss>(what_); }
  // Only if not is_miss().
  [[nodiscard]] const Error& error() const { return std::get<Error>(what_); }
  // Shorthands that are safe whatever it is.
  [[nodiscard]] bool is(MissReason reason) const { return is_miss() && miss().reason == reason; }
  [[nodiscard]] bool is(ErrorCode code) const { return !is_miss() && error().code == code; }
  [[nodiscard]] std::string message() const {
    return is_miss() ? miss().message() : error().message();
  }

 private:
  std::variant<CacheMiss, Error> what_;
};

}  // namespace hotkv
