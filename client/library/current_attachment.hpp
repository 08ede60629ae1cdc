#pragma once
// What a Client holds: the attachment of the moment, which another replaces after a cold restart.

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <expected>
#include <memory>
#include <mutex>

#include <hotkv/client.hpp>
#include <hotkv/error.hpp>
#include <hotkv/recipe.hpp>

#include "client/library/attachment.hpp"
#include "client/library/fork_guard.hpp"
#include "shared/seqpacket.hpp"

namespace hotkv::client {

// From now; a wait without end is asked for with a huge number, and that must not wrap.
[[nodiscard]] Deadline deadline_after(std::chrono::milliseconds wait);

// Thread-safe. In a forked child it is inert but for what is marked.
//
// Lifetimes. The Client has it and ends its part with close(). It has the current attachment until
// then. That one has the Watch, whose thread works with both, and whose end joins that thread. So
// the watching thread must never drop the last share of the attachment that has its Watch:
// - It has a share in an attachment only inside replace(), under change_mutex_.
// - There it drops the lost one, which has given up its Watch by then, so nothing is joined.
// - The new one, which has the Watch now, is kept by current_ until close() takes the same mutex.
// Every other share (views, writers, contexts, calls under way, close()) is some other thread's.
class CurrentAttachment : public std::enable_shared_from_this<CurrentAttachment> {
 public:
  // Errors: see Client::attach.
  [[nodiscard]] static std::expected<std::shared_ptr<CurrentAttachment>, Error> attach(
      const ClientOptions& options, const Recipe& recipe);
  CurrentAttachment(const ClientOptions& options, const Recipe& recipe);
  // The Client is gone. What contexts and views still hold goes on as long as the memory lives.
  void close();

  // Safe in a forked child, all four.
  [[nodiscard]] bool is_foreign() const noexcept { return guard_.is_foreign(); }
  [[nodiscard]] const Recipe& recipe() const { return recipe_; }
  [[nodiscard]] std::uint32_t chunk_tokens() const {
    return chunk_tokens_.load(std::memory_order_acquire);
  }
  // A get() after it is of this memory, or of a later one.
  [[nodiscard]] std::uint64_t boot_token() const {
    return boot_token_.load(std::memory_order_acquire);
  }

  [[nodiscard]] const ClientOptions& options() const { return options_; }
  // Every call of a user takes its own share first, and works with this one life of memory.
  [[nodiscard]] std::shared_ptr<Attachment> get() const;
  [[nodiscard]] bool is_connected() const { return get()->connection().is_connected(); }
  // False if there is no connection by then, or none is tried for any more.
  [[nodiscard]] bool wait_connected(std::chrono::milliseconds wait) const;

  // ---- of the watching thread -------------------------------------------------------------------

  // One try to come back, which `served` has been waiting for. See ComeBack::try_once.
  [[nodiscard]] std::expected<Connection*, Error> come_back(Attachment*& served,
                                                            const std::shared_ptr<Wakeup>& wakeup);
  // Wakes those who wait for a connection.
  void connection_changed(bool gave_up);

 private:
  // Goes on with other memory. Null if there is no Client any more that could want it.
  [[nodiscard]] Attachment* replace(Attachment& lost, AttachedShard shard,
                                    const std::shared_ptr<Wakeup>& wakeup);
  // Returns what was there.
  std::shared_ptr<Attachment> exchange(std::shared_ptr<Attachment> next);

  const ForkGuard guard_;
  const ClientOptions options_;  // socket_path is never empty
  const Recipe recipe_;
  std::atomic<std::uint32_t> chunk_tokens_{0};
  std::atomic<std::uint64_t> boot_token_{0};

  std::mutex change_mutex_;  // held over any change of current_
  bool closed_ = false;      // guarded by change_mutex_

  // Held for the length of one copy of current_. A word of its own because this lies on the path of
  // every resolve, and not std::atomic<std::shared_ptr>, whose lock in GCC 12 TSan cannot follow.
  alignas(64) mutable std::atomic<bool> copying_{false};
  std::shared_ptr<Attachment> current_;  // guarded by copying_

  mutable std::mutex wait_mutex_;
  mutable std::condition_variable changed_;
  bool gave_up_ = false;  // guarded by wait_mutex_
};

}  // namespace hotkv::client
