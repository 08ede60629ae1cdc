#pragma once
// The kernel's side of the core's memory orders: which extents of which shard have memory at each
// moment. An order can be left waiting, carried out, or fail before or after its punches.

#include <algorithm>
#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <optional>
#include <utility>

#include "tests/support/core_harness.hpp"

namespace hotkv::test {

class OrderRunner {
 public:
  enum class Ending { success, failed_before_punching, failed_after_punching };

  explicit OrderRunner(CoreHarness& harness) : harness_(harness) {}

  // Orders under way, oldest first, those the core has made since included.
  std::deque<core::MemoryOrder>& waiting() {
    for (auto& order : harness_.core->take_memory_orders()) waiting_.push_back(std::move(order));
    return waiting_;
  }

  // Ends the oldest order; false if there is none.
  bool run_one(Ending ending = Ending::success) {
    if (waiting().empty()) return false;
    const core::MemoryOrder order = std::move(waiting_.front());
    waiting_.pop_front();
    if (ending != Ending::failed_before_punching) {
      for (const auto& range : order.punch) punch(range);
    }
    if (ending == Ending::success) {
      for (const auto& range : order.provision) provision(range);
      harness_.core->memory_order_done(order.id, {}, true);
    } else {
      harness_.core->memory_order_done(order.id,
                                       std::unexpected(Error{ErrorCode::memory_unavailable,
                                                             "provision", "memory", "no headroom"}),
                                       ending == Ending::failed_after_punching);
    }
    for (auto& finished : harness_.core->take_finished_grants()) {
      answers_.emplace(finished.ticket, std::move(finished.outcome));
    }
    return true;
  }
  void run_all() {
    while (run_one()) {
    }
  }

  // The core that ordered is gone. Each order under way was punched for or not, and if it was,
  // carried out or not.
  void abandon(const std::function<bool()>& went_on) {
    for (const core::MemoryOrder& order : waiting()) {
      if (!went_on()) continue;
      for (const auto& range : order.punch) punch(range);
      if (!went_on()) continue;
      for (const auto& range : order.provision) provision(range);
    }
    waiting_.clear();
    answers_.clear();
  }

  // The answer of an append that waited; nothing while it waits.
  std::optional<core::Outcome<core::Position>> answer(std::uint64_t ticket) {
    const auto found = answers_.find(ticket);
    if (found == answers_.end()) return std::nullopt;
    auto outcome = std::move(found->second);
    answers_.erase(found);
    return outcome;
  }

  // Bytes that have memory now, and the most there ever were.
  [[nodiscard]] std::uint64_t held_bytes() const {
    std::uint64_t bytes = 0;
    for (const auto& [id, memory] : harness_.files) {
      bytes += memory->provisioned.size() * memory->geometry.extent_bytes;
    }
    return bytes;
  }
  [[nodiscard]] std::uint64_t held_bytes_max() const { return held_bytes_max_; }
  // Holes that were punched again and extents that were provisioned twice.
  [[nodiscard]] std::uint64_t contradictions() const { return contradictions_; }

 private:
  std::pair<ShardFilesInMemory&, std::uint32_t> place(const core::ExtentRange& range) {
    ShardFilesInMemory& memory = *harness_.files.at(range.shard);
    const auto layout = FileLayout::of(memory.capacities, memory.geometry);
    return {memory,
            static_cast<std::uint32_t>((range.arena_offset.value() - layout.chunks.value()) /
                                       memory.geometry.extent_bytes)};
  }
  void punch(const core::ExtentRange& range) {
    auto [memory, extent] = place(range);
    if (memory.provisioned.erase(extent) == 0) ++contradictions_;
    std::ranges::fill(memory.arena.bytes().subspan(range.arena_offset.value(), range.size_bytes),
                      std::byte{0});
  }
  void provision(const core::ExtentRange& range) {
    auto [memory, extent] = place(range);
    if (!memory.provisioned.insert(extent).second) ++contradictions_;
    held_bytes_max_ = std::max(held_bytes_max_, held_bytes());
  }

  CoreHarness& harness_;
  std::deque<core::MemoryOrder> waiting_;
  std::map<std::uint64_t, core::Outcome<core::Position>> answers_;
  std::uint64_t held_bytes_max_ = 0;
  std::uint64_t contradictions_ = 0;
};

}  // namespace hotkv::test
