#pragma once
// Errors: what went wrong, on what, and why. A cache miss is not an error (see cache_miss.hpp).

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

namespace hotkv {

// One list for the library, the wire, the metrics and other languages. Numbers are never reused.
enum class ErrorCode : std::uint32_t {
  invalid_argument = 1,          // the caller's value is out of its documented range
  protocol_error = 2,            // a frame of wrong size, type, count or order
  unsupported_version = 3,       // no protocol or layout version in common
  not_attached = 4,              // an operation before ATTACH
  already_attached = 5,          // a second ATTACH on one connection
  access_denied = 6,             // the peer's uid may not do this
  uncertified_architecture = 7,  // the recipe's architecture is not on the certified list
  incompatible_recipe = 8,       // the shard's recipe differs; the message names the fields
  stale_epoch = 9,               // the session has been seen with a higher epoch
  session_busy = 10,             // another connected worker holds the lease
  lease_lost = 11,               // the context went to another worker or another generation
  length_mismatch = 12,          // the published length is not the one the caller expected
  budget_exceeded = 13,          // not enough memory within the byte budget, whatever is evicted
  too_many_sessions = 14,        // session cap reached and every context is pinned
  too_many_connections = 15,     // the daemon's bound on connections
  too_many_shards = 16,          // the bound on shards, of the daemon or of one owner
  too_many_clients = 17,         // no page is left in the shard's pages file
  too_many_waiting = 18,         // the queue of grants that wait for memory is full
  memory_unavailable = 19,       // the machine or a cgroup has no headroom for the memory
  daemon_unavailable = 20,       // no daemon at the socket, or it went away
  deadline_exceeded = 21,        // no answer within the caller's time
  system_error = 22,             // a system call failed; see os_errno
  shard_damaged = 23,            // the shard's memory contradicts itself
  shutting_down = 24,            // the daemon is ending and takes nothing new
  used_after_fork = 25,          // a client object was used in a forked child
  read_only = 26,                // a client attached for reading asked to write
  generations_exhausted = 27,    // the slot's generation number is used up; reopen with a new epoch
  too_many_pins = 28,            // every pin word of this client is in use
  address_in_use = 29,           // a live daemon (or something else) is at the socket path
  configuration_error = 30,      // a key, flag or value of the configuration
  shard_replaced = 31,           // the daemon has no such page: it started with other memory
};

// Size of an array that is indexed by the number of a code; index 0 is none's.
inline constexpr std::size_t kErrorCodes = static_cast<std::size_t>(ErrorCode::shard_replaced) + 1;

// The stable text of a code, as logs, metrics and JSON show it: "budget-exceeded".
[[nodiscard]] std::string_view to_string(ErrorCode code);
// Nothing for a text or a number that is no code.
[[nodiscard]] std::optional<ErrorCode> error_code_from_name(std::string_view name);
[[nodiscard]] std::optional<ErrorCode> error_code_from_number(std::uint32_t number);

// What failed. `message()` reads "append session \"a\": budget-exceeded: needed 4096 bytes, …".
struct [[nodiscard]] Error {
  ErrorCode code = ErrorCode::system_error;
  std::string operation;  // "append", "attach", "bind"
  std::string object;     // what it was done to: a session, a path, a key
  std::string cause;      // in words, with expected and actual values
  int os_errno = 0;       // 0, or the errno of the system call

  [[nodiscard]] std::string message() const;
};

// An Error for a failed system call; reads errno unless one is given.
[[nodiscard]] Error system_error(std::string operation, std::string object, int os_errno = -1);

}  // namespace hotkv
