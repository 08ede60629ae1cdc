#pragma once
// The pure core on plain memory, with an injected clock, and clients that run the client's half of
// every protocol on that memory.

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "client/tools/bench/kv_pattern.hpp"
#include "daemon/core/core.hpp"
#include "daemon/core/shard_tables.hpp"
#include "tests/support/plain_memory.hpp"

namespace hotkv::test {

using bench::fill_row;
using bench::Half;
using bench::RowMark;
using bench::wrong_bytes;

[[nodiscard]] SessionId id(std::string_view text);

// 2 KV heads of 8 two-byte elements, layers as given: 64 bytes a token and layer (G0 has 2 layers).
[[nodiscard]] Recipe small_recipe(LayerRange layers = {0, 1}, std::string model = "tiny");

// Clients that are gone, by hand.
class FakeLiveness : public core::PageLiveness {
 public:
  bool is_alive(core::ClientId client) override { return !gone.contains(client); }
  std::set<core::ClientId> gone;
};

// The files of one shard; they outlive a core that is "killed".
struct ShardFilesInMemory {
  explicit ShardFilesInMemory(const core::ShardPlan& plan);
  [[nodiscard]] core::ShardMemory memory() const;
  PlainMemory tables, arena, pages;
  Capacities capacities;
  Geometry geometry;
  std::set<std::uint32_t> provisioned;  // extents
};

struct CoreView;
// What a claimed pin word shows: the second half of a resolve. Nothing where the generation is
// over.
[[nodiscard]] std::optional<CoreView> view_of(const core::ShardTables& tables, core::ShardId shard,
                                              std::uint32_t pin, SlotIndex slot,
                                              Generation generation);

class CoreHarness {
 public:
  explicit CoreHarness(core::Limits limits = small_limits());

  // 64 chunks of 16 tokens for small_recipe(): 4 KiB each (2 KiB used), 256 KiB of budget.
  [[nodiscard]] static core::Limits small_limits();

  core::ShardId add_shard(const Recipe& recipe = small_recipe(), std::uint32_t owner_uid = 1000);
  core::ClientId attach(core::ShardId shard, Access access = Access::write);
  // Carries out every memory order at once and successfully.
  void settle();
  // Gives extents back, as the kernel would.
  void punch(ShardFilesInMemory& memory, const core::ExtentRange& range);
  // A new core over the same memory, as after a kill.
  void restart();

  [[nodiscard]] core::ShardTables tables(core::ShardId shard) const;

  core::Limits limits;
  std::uint64_t now_ms = 1'000'000;
  FakeLiveness liveness;
  std::unique_ptr<core::Core> core;
  std::map<core::ShardId, std::shared_ptr<ShardFilesInMemory>> files;

 private:
  std::uint32_t next_pid_ = 100;
};

// A reader's claim, taken and checked the way the library does it.
struct CoreView {
  core::ShardId shard;
  std::uint32_t pin;
  SlotIndex slot;
  Generation generation;
  TokenCount length;
  std::vector<ChunkIndex> chunks;  // first token first
};

// One attached client.
class CoreClient {
 public:
  CoreClient(CoreHarness& harness, core::ShardId shard, Access access = Access::write);

  [[nodiscard]] core::Outcome<core::Position> open(std::string_view session, std::uint64_t epoch);
  // Grant, pin, write the pattern of `version`, publish. The new length.
  [[nodiscard]] core::Outcome<TokenCount> append(std::string_view session, std::uint64_t epoch,
                                                 std::uint32_t tokens, std::uint32_t version = 0);
  // The steps of append() alone.
  [[nodiscard]] core::Outcome<core::Position> grant(std::string_view session, std::uint64_t epoch,
                                                    std::uint32_t up_to);
  [[nodiscard]] std::optional<CoreView> pin_for_writing(const core::Position& position);
  void write(std::string_view session, std::uint64_t epoch, const CoreView& writer,
             std::uint32_t from, std::uint32_t to, std::uint32_t version = 0);
  [[nodiscard]] bool publish(const CoreView& writer, std::uint32_t from, std::uint32_t to);

  [[nodiscard]] core::Outcome<core::Position> truncate(std::string_view session,
                                                       std::uint64_t epoch, std::uint32_t to);
  [[nodiscard]] core::Outcome<void> release(std::string_view session, std::uint64_t epoch);
  [[nodiscard]] core::Outcome<void> close(std::string_view session, std::uint64_t epoch);
  // Memory first, then the daemon's word, as the library does it.
  [[nodiscard]] core::Outcome<CoreView> resolve(std::string_view session, std::uint64_t epoch,
                                                std::uint32_t expected);
  void unpin(const CoreView& view);
  // Bytes of tokens [0, view.length) in all layers that are not the pattern's. `versions` gives a
  // version by position where it is not 0.
  [[nodiscard]] std::size_t wrong_bytes(std::string_view session, std::uint64_t epoch,
                                        const CoreView& view,
                                        const std::vector<std::uint32_t>& versions = {}) const;
  void hang_up();
  void die();  // hang up, and the mapping is gone

  core::ClientId client;

 private:
  [[nodiscard]] std::optional<CoreView> pin(SlotIndex slot, HeadWord head);
  [[nodiscard]] std::span<std::byte> row(const CoreView& view, std::uint32_t position,
                                         std::uint32_t layer, Half half) const;
  [[nodiscard]] std::optional<Generation> generation(std::string_view session) const;

  CoreHarness& harness_;
};

}  // namespace hotkv::test
