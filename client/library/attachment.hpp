#pragma once
// An attachment: the shard's files mapped into this process, this client's page, its connection.

#include <cstdint>
#include <expected>
#include <memory>
#include <span>

#include <hotkv/client.hpp>
#include <hotkv/error.hpp>
#include <hotkv/recipe.hpp>
#include <hotkv/types.hpp>

#include "client/library/chain_cache.hpp"
#include "client/library/connection.hpp"
#include "client/library/fork_guard.hpp"
#include "client/library/lease_table.hpp"
#include "client/library/pin_words.hpp"
#include "client/library/populated_chunks.hpp"
#include "client/library/position.hpp"
#include "client/library/session_index.hpp"
#include "client/library/wakeup.hpp"
#include "client/library/watch.hpp"
#include "shared/geometry.hpp"
#include "shared/layout.hpp"
#include "shared/mapping.hpp"
#include "shared/protocol.hpp"

namespace hotkv {

namespace client {

class CurrentAttachment;

// What ATTACH gave, checked: the header's numbers as this process's own copies, because the memory
// they came from is the daemon's.
struct ShardFacts {
  std::uint64_t boot_token = 0;
  std::uint64_t cookie = 0;  // names the page when this client comes back to it
  PageIndex page;
  std::uint64_t hash_key[2] = {};
  Capacities capacities;
  Geometry geometry;
  FileLayout layout;
};

struct ShardMappings {
  Mapping tables;       // read-only
  Mapping arena;        // read-write for a writer
  Mapping touch_words;  // of the pages file
  Mapping page;         // of the pages file: holds the lock that says this client lives
};

// What the handshake leaves behind.
struct AttachedShard {
  ShardFacts facts;
  ShardMappings mappings;
  ParentOnlyFd socket;
};

struct HandshakeLimits {
  Deadline deadline;
  // Of a thread that must be able to stop; it then also waits for nobody in connect(). Else null.
  const Wakeup* wakeup = nullptr;
};

// Connects, says HELLO and ATTACH, checks and maps what comes. Every number and descriptor the
// daemon sends is compared: sizes of reply, header and file, seals, recipe, geometry.
// Errors: see Client::attach.
[[nodiscard]] std::expected<AttachedShard, Error> attach_shard(std::string_view socket_path,
                                                               const Recipe& recipe, Access access,
                                                               const HandshakeLimits& limits);

// The same by page and cookie: the mappings stay, only the connection is another. Errors:
// shard_replaced (the daemon has other memory), protocol_error (its answer is about something
// else), and as for attach_shard.
[[nodiscard]] std::expected<ParentOnlyFd, Error> come_back_to_shard(std::string_view socket_path,
                                                                    const Recipe& recipe,
                                                                    Access access,
                                                                    const ShardFacts& facts,
                                                                    const HandshakeLimits& limits);

}  // namespace client

// One life of the shard's memory, as one client sees it: it survives the daemon, not the daemon's
// loss of the memory. Then it is lost, and the client goes on with another
// (current_attachment.hpp).
//
// Thread-safe. Shared by the Client, its contexts, views and writers; the last of them unmaps.
// In a forked child it is inert: see fork_guard.hpp. Its deleter does nothing there.
class Attachment : public std::enable_shared_from_this<Attachment> {
 public:
  [[nodiscard]] static std::shared_ptr<Attachment> make(
      std::shared_ptr<client::CurrentAttachment> client, client::AttachedShard shard,
      std::shared_ptr<client::Wakeup> wakeup);

  // Constant for life; safe in a forked child.
  [[nodiscard]] bool is_foreign() const noexcept { return guard_.is_foreign(); }
  [[nodiscard]] const Recipe& recipe() const;
  [[nodiscard]] const Geometry& geometry() const { return facts_.geometry; }
  [[nodiscard]] const client::ShardFacts& facts() const { return facts_; }
  // The client that it is, or was, an attachment of.
  [[nodiscard]] const client::CurrentAttachment& client() const { return *client_; }
  [[nodiscard]] Deadline deadline_from_now() const;

  // The read path (resolve.cpp). `expected` means nothing for LengthMatch::any. Takes a share in
  // the attachment because a view needs one, and taking another would be dear there.
  [[nodiscard]] static std::expected<View, CacheMiss> resolve(
      std::shared_ptr<const Attachment> attachment, const SessionId& session, Epoch epoch,
      TokenCount expected, LengthMatch match);

  // A writer for `size` tokens behind the position's length. `pin` is confirmed, the chain covers
  // them.
  [[nodiscard]] Writer make_writer(client::ChainRef chain, client::Pin pin,
                                   const client::Position& position, TokenCount size);

  // ---- memory; not in a forked child ------------------------------------------------------------

  [[nodiscard]] const AtomicWord& head(SlotIndex slot) const { return index_.slot(slot).head; }
  // Writable only in a writer's mapping.
  [[nodiscard]] AtomicWord& length(SlotIndex slot) const { return lengths_[slot.value()].word; }
  [[nodiscard]] std::byte* chunk(ChunkIndex chunk) const {
    return chunks_ + facts_.geometry.chunk_offset(chunk).value();
  }
  // See PopulatedChunks.
  void populate(std::span<const ChunkIndex> pinned_chunks) const {
    populated_.populate(pinned_chunks, facts_.geometry, chunks_);
  }
  // Notes that the slot was used now. A store only if the tick is another one. No system call:
  // the coarse clock is read from memory.
  void touch(SlotIndex slot) const;
  [[nodiscard]] client::PinWords& pins() const { return pins_; }
  [[nodiscard]] client::ChainCache& chains() const { return chains_; }

  // ---- the daemon; not in a forked child --------------------------------------------------------

  [[nodiscard]] client::Connection& connection() const { return *connection_; }
  [[nodiscard]] client::LeaseTable& leases() const { return leases_; }
  // See LeaseTable::settle.
  void settle_leases() const { leases_.settle(index_, facts_.page); }
  // The daemon came back with other memory: nothing here will ever be the daemon's again.
  [[nodiscard]] bool is_lost() const { return connection_->is_lost(); }

  // The thread that serves the connection. It is the attachment's that is current: its end joins
  // it.
  void watch_by(std::unique_ptr<client::Watch> watch) { watch_ = std::move(watch); }
  [[nodiscard]] std::unique_ptr<client::Watch> release_watch() { return std::move(watch_); }

 private:
  struct Sighting;

  Attachment(std::shared_ptr<client::CurrentAttachment> client, client::ShardFacts facts,
             client::ShardMappings mappings, std::unique_ptr<client::Connection> connection);
  ~Attachment() = default;

  // One look into memory; fills `sighting`, which a hit leaves with a confirmed pin.
  void look(const SessionId& session, Epoch epoch, TokenCount expected, LengthMatch match,
            Sighting& sighting) const;

  const client::ForkGuard guard_;
  const std::shared_ptr<client::CurrentAttachment> client_;
  const client::ShardFacts facts_;
  const client::ShardMappings mappings_;

  // Places within the mappings.
  const client::SessionIndex index_;
  LengthLine* const lengths_;
  std::byte* const chunks_;
  TouchWord* const touch_words_;

  mutable client::PinWords pins_;
  mutable client::ChainCache chains_;
  mutable client::PopulatedChunks populated_;
  // Outlives the connection, whose end lets go of leases that late replies were to bring.
  mutable client::LeaseTable leases_;
  const std::unique_ptr<client::Connection> connection_;
  std::unique_ptr<client::Watch> watch_;  // ends first: it uses all of the above
};

}  // namespace hotkv
