#pragma once
// What the server needs of a shard's three files, without knowing how they are made.

#include <array>
#include <cstdint>
#include <expected>

#include <hotkv/error.hpp>
#include <hotkv/types.hpp>

#include "daemon/core/core.hpp"
#include "shared/protocol.hpp"
#include "shared/unique_fd.hpp"

namespace hotkv::server {

// What ATTACH's reply passes: tables, arena, pages, in this order; and how large the files are.
struct AttachFiles {
  std::array<UniqueFd, protocol::kAttachDescriptors> descriptors;
  std::uint64_t tables_bytes = 0;
  std::uint64_t arena_bytes = 0;
  std::uint64_t pages_bytes = 0;
};

// The memory of a shard to be. Between prepare() and keep() nobody knows it yet; a second prepare()
// forgets what was prepared before.
struct PreparedShard {
  core::ShardMemory memory;
  core::ShardIdentity identity;
};

// One thread's, like the core that it serves as page liveness.
class ShardFiles : public core::PageLiveness {
 public:
  // Makes the three files of a plan, zeroed and sparse, and maps them.
  // Errors: system_error, memory_unavailable.
  [[nodiscard]] virtual std::expected<PreparedShard, Error> prepare(
      const core::ShardPlan& plan) = 0;
  // The files prepared last are those of this shard from now on.
  virtual void keep(core::ShardId shard) = 0;
  // Gives the files of a shard up. Clients that still map them keep them alive.
  virtual void drop(core::ShardId shard) = 0;

  // Descriptors for one client: the tables read-only, the arena read-write for writers only, and a
  // fresh description of the pages that holds the lock on this client's page. As long as that one
  // (or a mapping made of it) lives, is_alive() is true.
  // Errors: system_error, session_busy (somebody else holds the page).
  [[nodiscard]] virtual std::expected<AttachFiles, Error> open_for(core::ClientId client,
                                                                   Access access) = 0;

  // Begins to carry an order out; the answer comes later, by the way that the implementation was
  // given. Errors: too_many_waiting; nothing was done and no answer comes.
  [[nodiscard]] virtual std::expected<void, Error> run(const core::MemoryOrder& order) = 0;

  // Unpredictable, and never 0. Errors: system_error.
  [[nodiscard]] virtual std::expected<std::uint64_t, Error> random_number() = 0;
};

}  // namespace hotkv::server
