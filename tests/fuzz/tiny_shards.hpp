#pragma once
// Shards of a few slots and chunks on memory that is made once and used by every input again; under
// AddressSanitizer whatever is not a shard's, or has not been provisioned, is poisoned.

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <set>
#include <string_view>
#include <utility>
#include <vector>

#include "daemon/core/core.hpp"
#include "daemon/core/shard_tables.hpp"
#include "daemon/server/shard_files.hpp"
#include "tests/support/plain_memory.hpp"

namespace hotkv::fuzz {

// 16 bytes a token, 4 tokens a chunk, 12 chunks of budget, 3 contexts and 3 clients a shard.
[[nodiscard]] core::Limits tiny_limits();
[[nodiscard]] const Recipe& tiny_recipe();

// The memory of one shard's three files.
class TinyMemory {
 public:
  TinyMemory();
  // Zeroed, of a plan's sizes; false if it asks for more than there is.
  [[nodiscard]] bool format(const core::ShardPlan& plan);
  [[nodiscard]] core::ShardMemory memory() const;
  [[nodiscard]] const Capacities& capacities() const { return capacities_; }
  [[nodiscard]] const Geometry& geometry() const { return geometry_; }
  [[nodiscard]] core::ShardTables tables() const { return {memory(), capacities_, geometry_}; }
  [[nodiscard]] bool is_provisioned(ExtentIndex extent) const {
    return provisioned_.contains(extent.value());
  }
  [[nodiscard]] const std::set<std::uint32_t>& provisioned() const { return provisioned_; }
  // What the kernel does: fresh memory is zero, and what was given back is gone.
  void provision(std::uint32_t extent);
  void punch(std::uint32_t extent);

 private:
  test::PlainMemory tables_, arena_, pages_;
  Capacities capacities_;
  Geometry geometry_;
  FileLayout layout_;
  std::set<std::uint32_t> provisioned_;
};

// Stands for the daemon's files: keeps memory orders until somebody says that they are done.
class TinyFiles final : public server::ShardFiles {
 public:
  TinyFiles();
  ~TinyFiles() override;

  std::expected<server::PreparedShard, Error> prepare(const core::ShardPlan& plan) override;
  void keep(core::ShardId shard) override;
  void drop(core::ShardId shard) override;
  std::expected<server::AttachFiles, Error> open_for(core::ClientId client, Access) override;
  std::expected<void, Error> run(const core::MemoryOrder& order) override;
  std::expected<std::uint64_t, Error> random_number() override { return ++cookies_; }
  bool is_alive(core::ClientId client) override { return alive.contains(client); }

  [[nodiscard]] TinyMemory& at(core::ShardId shard) { return *shards_.at(shard); }
  [[nodiscard]] bool has(core::ShardId shard) const { return shards_.contains(shard); }
  [[nodiscard]] std::vector<core::ShardId> shards() const;
  [[nodiscard]] bool has_orders() const { return !orders_.empty(); }
  // Takes the oldest order and does to memory what it says, as far as it is to succeed.
  struct Done {
    std::uint64_t id;
    std::expected<void, Error> result;
    bool punched;
  };
  Done carry_out(bool punches, bool provisions);

  std::set<core::ClientId> alive;
  bool refuses_orders = false;

 private:
  void apply(const std::vector<core::ExtentRange>& ranges, bool provision);

  std::map<core::ShardId, TinyMemory*> shards_;
  TinyMemory* prepared_ = nullptr;
  std::vector<core::MemoryOrder> orders_;
  std::uint64_t cookies_ = 0;
};

// A core over such files, with a clock by hand.
class TinyCore {
 public:
  explicit TinyCore(const core::Limits& the_limits = tiny_limits());

  core::ShardId add_shard(std::uint32_t owner_uid, const Recipe& recipe = tiny_recipe());
  core::ClientId attach(core::ShardId shard, Access access = Access::write);
  // Carries out every order at once.
  void settle();
  // Every invariant.
  void verify() const;
  // And the account and the budget.
  void check() const;
  // Ends every client and every context; then not a chunk may be in use.
  void check_that_all_comes_back();
  // Generation and published tokens of a session's context, as they stand in memory.
  struct Standing {
    SlotIndex slot;
    HeadWord head;
    std::uint64_t epoch = 0;
    LengthWord length;
  };
  [[nodiscard]] std::optional<Standing> find(core::ShardId shard, const SessionId& session);

  core::Limits limits;
  std::uint64_t now_ms = 1'000'000;
  TinyFiles files;
  core::Core core;
};

// A client that does nothing wrong: one context of two chunks, which it goes on reading.
class HonestReader {
 public:
  HonestReader(TinyCore& tiny, core::ShardId shard);
  // Not a byte of what it has pinned is another, whatever others did.
  void check_bytes();
  // Its context is live, where nobody else may end it.
  void check_context();
  // Opens, appends and reads on.
  void check_that_it_can_work();

 private:
  TinyCore& tiny_;
  core::ClientId client_;
  TinyCore::Standing pinned_;
  std::vector<std::pair<ChunkIndex, std::uint64_t>> chunk_words_;  // tip first
  std::vector<std::byte> bytes_;
};

[[nodiscard]] const SessionId& session(std::uint32_t number);
inline constexpr std::uint32_t kSessions = 6;

}  // namespace hotkv::fuzz
