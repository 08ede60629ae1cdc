#pragma once
// A shard that is damaged and adopted.

#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <map>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include "daemon/core/rebuild.hpp"
#include "shared/session_hash.hpp"
#include "tests/support/core_harness.hpp"

namespace hotkv::test {

// A healthy shard with something in every table, and copies of it that take damage.
class RebuildHarness : public ::testing::Test {
 protected:
  static core::Limits limits() {
    auto limits = CoreHarness::small_limits();
    limits.max_bytes = 32 * 4096;
    limits.session_cap = 8;  // 26 slots, of which the first few have been used
    return limits;
  }

  RebuildHarness() {
    for (const char* name : {"a", "b", "c", "d"}) {
      EXPECT_TRUE(worker.open(name, 3));
      EXPECT_TRUE(worker.append(name, 3, 20 + static_cast<unsigned>(name[0] - 'a') * 9, 1));
    }
    EXPECT_TRUE(worker.open("ended", 3));
    EXPECT_TRUE(worker.append("ended", 3, 5));
    EXPECT_TRUE(worker.release("ended", 3));
    view = reader.resolve("c", 3, 38).value();
    EXPECT_TRUE(worker.truncate("c", 3, 30));  // its old head is kept for the reader
    EXPECT_TRUE(worker.open("empty", 3));
    lengths = {{"a", 20}, {"b", 29}, {"c", 30}, {"d", 47}, {"empty", 0}};
    EXPECT_EQ(h.core->verify(), std::nullopt);
    healthy = save();
  }

  using Files = std::vector<std::vector<std::byte>>;
  core::ShardMemory memory() const { return h.files.begin()->second->memory(); }
  core::ShardTables tables() const { return h.tables(h.files.begin()->first); }
  FileLayout layout() const { return FileLayout::of(tables().capacities(), tables().geometry()); }
  std::vector<std::span<std::byte>> parts() const {
    return {memory().tables, memory().arena.first(64 * tables().capacities().slot_count),
            memory().arena.subspan(layout().chunks.value()), memory().pages};
  }
  Files save() const {
    Files copy;
    for (const auto& part : parts()) copy.emplace_back(part.begin(), part.end());
    return copy;
  }
  void load(const Files& from) {
    const auto to = parts();
    for (std::size_t i = 0; i < to.size(); ++i) std::ranges::copy(from[i], to[i].begin());
  }

  void renew_core() {
    h.core = std::make_unique<core::Core>(
        h.limits, [this] { return h.now_ms; }, h.liveness);
  }
  std::expected<core::ShardId, Error> adopt() {
    renew_core();
    const auto file = h.files.begin()->second;
    auto adopted = h.core->adopt_shard(file->memory(), default_certified_architectures());
    if (adopted) {
      h.files.clear();
      h.files.emplace(*adopted, file);
      worker.client.shard = reader.client.shard = *adopted;
    }
    return adopted;
  }
  std::vector<std::uint32_t> chain_of(SlotIndex slot) const {
    std::vector<std::uint32_t> chain;
    Tip tip = load_head(tables().slot(slot).head).tip;
    while (tip.is_chunk() && tip.chunk().value() < tables().capacities().chunk_count &&
           chain.size() < tables().capacities().chunk_count) {
      chain.push_back(tip.chunk().value());
      const auto previous = ChunkWord::from_bits(tables().chunk_word(tip.chunk()).load()).previous;
      tip = previous ? Tip::at(*previous) : Tip::empty();
    }
    return chain;
  }
  // Adopts what stands in memory now: verify() is clean, every context but `damaged` is whole, and
  // that one shows its own bytes where it shows any.
  void expect_adoption(const std::string& damaged) {
    const auto adopted = adopt();
    ASSERT_TRUE(adopted.has_value()) << adopted.error().message();
    ASSERT_EQ(h.core->verify(), std::nullopt);
    for (const auto& [name, length] : lengths) {
      auto read = worker.resolve(name, 3, length);
      if (!read && name == damaged) continue;
      ASSERT_TRUE(read.has_value()) << name << ": " << read.error().message();
      ASSERT_EQ(worker.wrong_bytes(name, 3, *read, std::vector<std::uint32_t>(length, 1)), 0u)
          << name;
      worker.unpin(*read);
    }
    // The damaged one, where it is still there, can be ended and begun anew like any other.
    if (!damaged.empty()) {
      (void)worker.open(damaged, 1'000'000);
      (void)worker.release(damaged, 1'000'000);
    }
    ASSERT_TRUE(worker.open("after", 3).has_value());
    ASSERT_TRUE(worker.append("after", 3, 40).has_value());
    ASSERT_TRUE(worker.release("after", 3).has_value());
    ASSERT_EQ(h.core->verify(), std::nullopt);
  }

  // Every word of a record in turn is replaced by values that mean something and by random ones.
  void damage_every_word(const std::string& whose, std::size_t offset, std::size_t size,
                         const std::vector<std::size_t>& spared = {}) {
    for (std::size_t word = 0; word < size; word += 4) {
      if (std::ranges::find(spared, word) != spared.end()) continue;
      for (const std::uint32_t value :
           {0u, 1u, 2u, 3u, 16u, 25u, 0x7fff'ffffu, 0x8000'0000u, 0xffff'fff0u, ~0u,
            static_cast<std::uint32_t>(random()), static_cast<std::uint32_t>(random())}) {
        SCOPED_TRACE(testing::Message() << whose << ": byte " << word << " := " << value);
        load(healthy);
        std::memcpy(memory().tables.data() + offset + word, &value, sizeof value);
        expect_adoption(whose);
        if (HasFatalFailure()) return;
      }
    }
  }
  void damage_whole_record(const std::string& whose, std::size_t offset, std::size_t size) {
    for (int round = 0; round < 200; ++round) {
      SCOPED_TRACE(testing::Message() << whose << ": random bytes, round " << round);
      load(healthy);
      for (std::size_t i = 0; i < size; ++i) {
        memory().tables[offset + i] = static_cast<std::byte>(random());
      }
      expect_adoption(whose);
      if (HasFatalFailure()) return;
    }
  }
  std::size_t slot_offset(std::uint32_t slot) const {
    return layout().slots.value() + slot * sizeof(SlotRecord);
  }
  std::size_t ledger_offset(std::uint32_t record) const {
    return layout().ledger.value() + record * sizeof(LedgerRecord);
  }
  // Why a context of the healthy shard is not there as it was; nothing where it is.
  std::optional<MissReason> miss_of(const std::string& session) {
    auto read = worker.resolve(session, 3, lengths.at(session));
    if (!read)
      return read.error().is_miss() ? std::optional(read.error().miss().reason) : std::nullopt;
    worker.unpin(*read);
    return std::nullopt;
  }
  void name_tip(const std::string& session, std::uint32_t chunk) {
    AtomicWord& head = tables().slot(slot_of(session)).head;
    head = HeadWord{load_head(head).generation, Tip::at(ChunkIndex{chunk})}.bits();
  }
  SlotRecord& rename(const std::string& session, const std::string& other) {
    SlotRecord& slot = tables().slot(slot_of(session));
    for (std::size_t i = 0; i < SessionId::kWords; ++i) slot.id[i] = id(other).words()[i];
    slot.id_bytes = id(other).size_bytes();
    return slot;
  }
  SlotIndex slot_of(const std::string& session) const {
    for (std::uint32_t i = 0;; ++i) {
      if (slot_has_session(tables().slot(SlotIndex{i}), id(session))) return SlotIndex{i};
    }
  }

  CoreHarness h{limits()};
  core::ShardId shard = h.add_shard();
  CoreClient worker{h, shard};
  CoreClient reader{h, shard, Access::read};
  CoreView view;
  std::map<std::string, std::uint32_t> lengths;
  Files healthy;
  std::mt19937 random{31};
};

}  // namespace hotkv::test
