#pragma once
// The client library: attach to a shard, take contexts, append, roll back, read.
//
// Reading (resolve, get, looking at K and V) and publishing use mapped memory only: no system call,
// no daemon. Whatever changes ownership is a message, answered within ClientOptions::deadline.

#include <chrono>
#include <cstdint>
#include <expected>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include <hotkv/cache_miss.hpp>
#include <hotkv/error.hpp>
#include <hotkv/recipe.hpp>
#include <hotkv/types.hpp>
#include <hotkv/view.hpp>
#include <hotkv/writer.hpp>

namespace hotkv {

namespace client {
class CurrentAttachment;  // the mapped shard and its connection; private to the library
}

struct ClientOptions {
  // Control socket. Empty: $HOTKV_SOCKET, else $XDG_RUNTIME_DIR/hotkv/control.sock if an ordinary
  // user (not root) has a socket there, else /run/hotkv/control.sock.
  std::string socket_path;
  // A reader maps the arena read-only and can neither open nor append nor truncate.
  Access access = Access::write;
  // Longest wait of any call; a call that ends by it says deadline-exceeded, and then the daemon
  // may or may not have done it. What was asked of a Context may then have moved it to a new
  // generation: if its next call says lease-lost, open it again.
  std::chrono::milliseconds deadline{5000};
  // How long after a hang-up the client tries to come back; 0: not at all. Afterwards it stays
  // disconnected, and errors say so. The default is practically for ever: a worker that outlives a
  // long maintenance goes on by itself.
  std::chrono::milliseconds reattach_for{std::chrono::hours(24 * 365)};
};

struct ContextKey {
  SessionId session;
  Epoch epoch;
};

class Context;

struct AppendRequest {
  Context* context;  // not null
  TokenCount tokens;
};
struct TruncateRequest {
  Context* context;  // not null
  TokenCount to;
};

// An attachment to one shard: one (owner uid, model id, layer range) of one daemon.
//
// When the daemon dies: calls that ask it end with daemon_unavailable at once, resolve and get miss
// with it, is_connected() is false. Held views stay readable; what is granted can be written and
// published. The client comes back by itself, first within some 10 ms, then ever less often, down
// to once in two seconds. If the daemon then has the memory still, everything goes on: contexts,
// writers, views, leases; only what was asked meanwhile, or asked and not answered, has to be asked
// again, and an append or truncate that was not answered may have been done (then the context says
// lease-lost or length-mismatch: open it again). If it has other memory, boot_token() is another
// one and the next open or resolve works on it: contexts from before answer with the miss
// lost_in_restart, their writers publish nothing (lease_lost), held views stay readable and keep
// the old memory mapped until the last of them is gone.
//
// Thread-safe: any member may be called from any threads at once. Move-only; views, writers and
// contexts keep what they need alive, so they may outlive the Client. A forked child cannot use it:
// errors say used-after-fork, views are empty, and nothing of the parent's is touched. (Children of
// fork(); a bare clone() or _Fork() must not use it at all.) A moved-from object may be destroyed,
// assigned to, and asked what returns an error.
class Client {
 public:
  // Errors: daemon_unavailable, incompatible_recipe (the shard's recipe differs: names the fields),
  // uncertified_architecture, access_denied, too_many_clients/_connections/_shards,
  // deadline_exceeded, unsupported_version, system_error (naming the call).
  [[nodiscard]] static std::expected<Client, Error> attach(const ClientOptions& options,
                                                           const Recipe& recipe);

  Client(Client&&) noexcept;
  Client& operator=(Client&&) noexcept;
  ~Client();

  [[nodiscard]] const Recipe& recipe() const;
  [[nodiscard]] std::uint32_t chunk_tokens() const;
  // Random identity of the shard's memory; another one after a cold restart of the daemon (and then
  // chunk_tokens() may be another one, too).
  [[nodiscard]] std::uint64_t boot_token() const;
  // False from a hang-up of the daemon until the client has come back to it.
  [[nodiscard]] bool is_connected() const;
  // Waits until is_connected(). False if it is not by then, or has given up (reattach_for).
  [[nodiscard]] bool wait_connected(std::chrono::milliseconds wait) const;

  // Takes the lease of (session, epoch), making the context if it is not there. A higher epoch than
  // any before supersedes and frees the session's older context.
  // Errors: stale_epoch, session_busy (names the holder), too_many_sessions, incompatible_recipe
  // where `recipe` is given and differs, read_only, daemon_unavailable, deadline_exceeded.
  [[nodiscard]] std::expected<Context, Refusal> open(const SessionId& session, Epoch epoch,
                                                     const Recipe* recipe = nullptr);
  // One message for up to 256; result i belongs to key i. More keys are several messages.
  [[nodiscard]] std::vector<std::expected<Context, Refusal>> open(std::span<const ContextKey> keys);

  // A view of exactly `expected` published tokens (or of all that are published, as `match` says).
  // The miss says why there is none; where it says daemon_unavailable, `cause` says what stood in
  // the way: daemon_unavailable (it hung up and is not back; then nothing hits, for nobody ends
  // superseded contexts), deadline_exceeded, used_after_fork, too_many_pins (1016 views and writers
  // at once), protocol_error, shard_damaged. A hit makes no system call (the first walk of a long
  // chain may allocate; threads that meet in the same nanoseconds may yield); a miss costs a round
  // trip to the daemon, which alone knows the reason.
  [[nodiscard]] std::expected<View, CacheMiss> resolve(
      const SessionId& session, Epoch epoch, TokenCount expected,
      LengthMatch match = LengthMatch::exact) const;
  // The same for a caller that states its recipe with each request.
  // Errors: incompatible_recipe naming the fields.
  [[nodiscard]] std::expected<View, Refusal> resolve_as(
      const Recipe& recipe, const SessionId& session, Epoch epoch, TokenCount expected,
      LengthMatch match = LengthMatch::exact) const;
  // A view of whatever is published.
  [[nodiscard]] std::expected<View, CacheMiss> get(const SessionId& session, Epoch epoch) const;

  // Writers for `tokens` more tokens each, in one message for up to 256 (and none at all for those
  // that lie within what is granted already). See Context::append.
  [[nodiscard]] std::vector<std::expected<Writer, Refusal>> append(
      std::span<const AppendRequest> requests);
  // See Context::truncate.
  [[nodiscard]] std::vector<std::expected<void, Refusal>> truncate(
      std::span<const TruncateRequest> requests);

  // Ends the context, whoever holds it. Other holders' pinned bytes stay as they are.
  // A miss says that it was gone already, and why.
  [[nodiscard]] std::expected<void, Refusal> release(const SessionId& session, Epoch epoch);
  [[nodiscard]] std::vector<std::expected<void, Refusal>> release(std::span<const ContextKey> keys);

 private:
  friend class Context;
  explicit Client(std::shared_ptr<client::CurrentAttachment> current);
  std::shared_ptr<client::CurrentAttachment> current_;
};

// The lease of one context: the right to be its one writer. Move-only; giving it back is the
// destructor (which does not wait) or close() (which does). A right, not a shield: while idle the
// context can be evicted, and the next call then answers with that miss.
//
// Used by one thread at a time; different contexts are independent. Contexts of one (session,
// epoch) that one Client opened share its lease: the last of them gives it back.
class Context {
 public:
  Context(Context&&) noexcept;
  Context& operator=(Context&&) noexcept;
  ~Context();

  [[nodiscard]] const SessionId& session() const;
  [[nodiscard]] Epoch epoch() const;
  // Published tokens, as memory says now; as last known where the context is gone.
  [[nodiscard]] TokenCount length() const;
  // Tokens that can be appended without asking the daemon.
  [[nodiscard]] TokenCount granted() const;

  // A writer for `tokens` tokens behind the published length. Within the grant it is no system
  // call. One writer at a time: two writers of one context start at the same token, so they write
  // over one another, and only the first to publish succeeds. Errors: budget_exceeded (needed,
  // free, pinned), memory_unavailable, too_many_waiting, lease_lost, invalid_argument (0 tokens, or
  // beyond the largest context), daemon_unavailable, deadline_exceeded, too_many_pins. Misses: the
  // context is gone, and why (after a restart that could not keep it: lost_in_restart).
  [[nodiscard]] std::expected<Writer, Refusal> append(TokenCount tokens);
  // Makes at least `tokens` more tokens writable, for work that must not meet the daemon later.
  [[nodiscard]] std::expected<void, Refusal> reserve(TokenCount tokens);

  // Rolls all owned layers back to `to` tokens (to <= length()). Readers and writers that hold the
  // old tokens keep their bytes. Truncating to the present length does nothing.
  // Errors: length_mismatch (somebody published meanwhile), invalid_argument (to > length),
  // generations_exhausted, and as for append.
  [[nodiscard]] std::expected<void, Refusal> truncate(TokenCount to);

  // Ends the context and the lease.
  [[nodiscard]] std::expected<void, Refusal> release();
  // Gives the lease back; the context stays.
  [[nodiscard]] std::expected<void, Refusal> close();

 private:
  friend class Client;
  struct State;
  explicit Context(std::unique_ptr<State> state);
  std::unique_ptr<State> state_;
};

}  // namespace hotkv
