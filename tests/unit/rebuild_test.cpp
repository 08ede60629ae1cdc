#include "daemon/core/rebuild.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <functional>
#include <map>
#include <memory>
#include <random>
#include <set>
#include <string>
#include <vector>

#include "shared/session_hash.hpp"
#include "tests/support/core_harness.hpp"

namespace hotkv::test {
namespace {

// A healthy shard with something in every table, and copies of it that take damage.
class Rebuild : public ::testing::Test {
 protected:
  static core::Limits limits() {
    auto limits = CoreHarness::small_limits();
    limits.max_bytes = 32 * 4096;
    limits.session_cap = 8;  // 26 slots, of which the first few have been used
    return limits;
  }

  Rebuild() {
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

  std::expected<core::ShardId, Error> adopt() {
    h.core = std::make_unique<core::Core>(
        h.limits, [this] { return h.now_ms; }, h.liveness);
    const auto file = h.files.begin()->second;
    auto adopted = h.core->adopt_shard(file->memory(), default_certified_architectures());
    if (adopted) {
      h.files.clear();
      h.files.emplace(*adopted, file);
      worker.client.shard = reader.client.shard = *adopted;
    }
    return adopted;
  }
  // Chunks that more than one live context's chain comes to.
  std::set<std::uint32_t> meeting_points() const {
    std::set<std::uint32_t> seen, met;
    for (std::uint32_t i = 0; i < tables().capacities().slot_count; ++i) {
      std::set<std::uint32_t> own;
      for (const std::uint32_t chunk : chain_of(SlotIndex{i})) {
        if (own.insert(chunk).second && !seen.insert(chunk).second) met.insert(chunk);
      }
    }
    return met;
  }
  // However damaged.
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
  // Adopts what stands in memory now: verify() is clean, and every context but `damaged` is whole.
  void expect_adoption(const std::string& damaged) {
    const auto meeting = meeting_points();
    std::map<std::string, bool> meets;
    for (const auto& [name, length] : lengths) {
      meets[name] = name != damaged &&
                    std::ranges::any_of(chain_of(slot_of(name)),
                                        [&](auto chunk) { return meeting.contains(chunk); });
    }
    const auto adopted = adopt();
    ASSERT_TRUE(adopted.has_value()) << adopted.error().message();
    ASSERT_EQ(h.core->verify(), std::nullopt);
    for (const auto& [name, length] : lengths) {
      if (name == damaged) continue;
      auto read = worker.resolve(name, 3, length);
      if (!read && read.error().is(MissReason::lost_in_restart) && meets[name]) {
        continue;  // nobody can tell which of the two chains is the damaged one
      }
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

// FR-110: what a restarted daemon says is there can be read.
TEST_F(Rebuild, AHealthyShardIsAdoptedAsItWas) {
  expect_adoption("");
  EXPECT_EQ(reader.wrong_bytes("c", 3, view, std::vector<std::uint32_t>(38, 1)), 0u);
  EXPECT_TRUE(worker.resolve("ended", 3, 5).error().is(MissReason::released));
  EXPECT_TRUE(worker.open("ended", 2).error().is(ErrorCode::stale_epoch));
}

TEST_F(Rebuild, AnAdoptionCanBeAdopted) {
  for (int i = 0; i < 3; ++i) expect_adoption("");
}

TEST_F(Rebuild, HoldersAndPinsComeBackWithTheirPages) {
  ASSERT_TRUE(adopt().has_value());
  EXPECT_EQ(h.core->contexts().at(0).holder, worker.client.page);
  EXPECT_EQ(h.core->status().shards.at(0).kept_heads, 1u);
  // Whoever is gone by then counts for nothing.
  h.liveness.gone = {{core::ShardId{1}, worker.client.page},
                     {core::ShardId{1}, reader.client.page}};
  ASSERT_TRUE(adopt().has_value());
  h.core->tick();
  EXPECT_EQ(h.core->contexts().at(0).holder, std::nullopt);
  EXPECT_EQ(h.core->status().shards.at(0).kept_heads, 0u);
  EXPECT_EQ(h.core->status().shards.at(0).clients, 0u);
  EXPECT_EQ(h.core->verify(), std::nullopt);
}

// The epochs are tests of their own.
TEST_F(Rebuild, AnyWordOfASlotCanBeDamaged) {
  for (const auto& [name, length] : lengths) {
    damage_every_word(name, slot_offset(slot_of(name).value()), sizeof(SlotRecord), {8, 12});
    if (HasFatalFailure()) return;
  }
}

TEST_F(Rebuild, AWholeSlotCanBeRandomBytes) {
  damage_whole_record("b", slot_offset(slot_of("b").value()), sizeof(SlotRecord));
  damage_whole_record("", slot_offset(20), sizeof(SlotRecord));  // one that was never used
}

TEST_F(Rebuild, ALowerEpochInASlotIsSuperseded) {
  tables().slot(slot_of("b")).epoch = 2;
  expect_adoption("b");
  load(healthy);
  tables().slot(slot_of("b")).epoch = 2;
  ASSERT_TRUE(adopt().has_value());
  EXPECT_TRUE(worker.resolve("b", 2, 29).error().is(MissReason::superseded_epoch));
}

// The ledger hears of an epoch first: what a slot says beyond it was opened by nobody, and makes no
// epoch stale.
TEST_F(Rebuild, AHigherEpochInASlotThanInTheLedgerIsShownToNobody) {
  tables().slot(slot_of("b")).epoch = 400;
  expect_adoption("b");
  load(healthy);
  tables().slot(slot_of("b")).epoch = 400;
  ASSERT_TRUE(adopt().has_value());
  EXPECT_FALSE(worker.resolve("b", 400, 29).has_value());
  EXPECT_EQ(miss_of("b"), MissReason::lost_in_restart);
  EXPECT_TRUE(worker.open("b", 4).has_value());
}

TEST_F(Rebuild, ASlotOfASessionThatTheLedgerDoesNotKnowIsShownToNobody) {
  SlotRecord& slot = tables().slot(slot_of("b"));
  slot.id[0] = id("bb").words()[0];
  slot.id_bytes = 2;
  ASSERT_TRUE(adopt().has_value());
  EXPECT_FALSE(worker.resolve("bb", 3, 29).has_value());
  EXPECT_FALSE(worker.resolve("b", 3, 29).has_value());
  EXPECT_EQ(h.core->verify(), std::nullopt);
}

TEST_F(Rebuild, AHigherEpochInTheLedgerThanInTheSlotIsSuperseded) {
  tables().ledger()[1].epoch = ~std::uint64_t{0};
  expect_adoption("b");
}

// The generation after the greatest number would be 0, and numbers would repeat from there on.
TEST_F(Rebuild, AGenerationBeyondAllOthersDoesNotBeginAgainAtZero) {
  const SlotIndex slot = slot_of("c");
  tables().slot(slot).head =
      HeadWord{Generation{~0u}, load_head(tables().slot(slot).head).tip}.bits();
  ASSERT_TRUE(adopt().has_value());
  EXPECT_NE(load_head(tables().slot(slot).head).generation, Generation{0});
}

// One of them would show the other's bytes, and both would write into each other in place.
TEST_F(Rebuild, ContextsWhoseChainsMeetAreShownToNobody) {
  const auto name_tip = [&](const char* damaged, std::uint32_t chunk) {
    SlotRecord& slot = tables().slot(slot_of(damaged));
    slot.head = HeadWord{load_head(slot.head).generation, Tip::at(ChunkIndex{chunk})}.bits();
  };
  // Tip first: "a" and "b" have two chunks, "d" has three.
  const auto a = chain_of(slot_of("a"));
  const auto d = chain_of(slot_of("d"));
  ASSERT_EQ(a.size(), 2u);
  ASSERT_EQ(d.size(), 3u);
  struct Damage {
    const char *what, *one, *other;
    std::function<void()> apply;
  };
  const std::vector<Damage> damages = {
      {"the tip of the other", "b", "a", [&] { name_tip("b", a[0]); }},
      {"the middle of the other", "a", "d", [&] { name_tip("a", d[1]); }},
      {"a chunk that follows the other's", "d", "a", [&] {
         tables().chunk_word(ChunkIndex{d[0]}) = ChunkWord{ChunkIndex{a[0]}, 2}.bits();
       }}};
  for (const Damage& damage : damages) {
    SCOPED_TRACE(damage.what);
    load(healthy);
    damage.apply();
    ASSERT_TRUE(adopt().has_value());
    EXPECT_EQ(miss_of(damage.one), MissReason::lost_in_restart);
    EXPECT_EQ(miss_of(damage.other), MissReason::lost_in_restart);
    EXPECT_EQ(miss_of("c"), std::nullopt);
    EXPECT_EQ(h.core->verify(), std::nullopt);
  }
}

// Killed in the middle of an eviction: what the miss says stands in the ledger by then.
TEST_F(Rebuild, AnEndThatHadBegunKeepsItsReason) {
  for (const bool is_retiring : {false, true}) {
    SCOPED_TRACE(is_retiring);
    load(healthy);
    for (LedgerRecord& record : tables().ledger()) {
      if (core::read_session_id(record.id_bytes, record.id) == id("b")) {
        record.fate = static_cast<std::uint32_t>(MissReason::evicted_lru);
      }
    }
    if (is_retiring) {
      tables().slot(slot_of("b")).state =
          kRetiringBase + static_cast<std::uint32_t>(MissReason::evicted_lru);
    }
    ASSERT_TRUE(adopt().has_value());
    EXPECT_EQ(miss_of("b"), MissReason::evicted_lru);
    EXPECT_EQ(h.core->status().shards.at(0).tombstones, 2u);  // "ended", too
    EXPECT_TRUE(worker.open("b", 3).has_value());
    EXPECT_EQ(h.core->verify(), std::nullopt);
  }
}

// The bytes are another context's: the ledger says of this one how it ended.
TEST_F(Rebuild, ASlotThatNamesASessionThatHasEndedIsShownToNobody) {
  ASSERT_TRUE(adopt().has_value());
  ASSERT_TRUE(worker.release("c", 3).has_value());
  SlotRecord& slot = tables().slot(slot_of("b"));
  for (std::size_t i = 0; i < SessionId::kWords; ++i) slot.id[i] = id("c").words()[i];
  slot.id_bytes = id("c").size_bytes();
  ASSERT_TRUE(adopt().has_value());
  EXPECT_EQ(miss_of("c"), MissReason::released);
  EXPECT_NE(miss_of("b"), std::nullopt);
  EXPECT_EQ(h.core->verify(), std::nullopt);
}

// All records count as ended until their session is known to live.
TEST_F(Rebuild, AFullLedgerForgetsNoLiveSessionForADamagedRecord) {
  auto tight = limits();
  tight.tombstones = 1;  // 27 records
  CoreHarness full(tight);
  const auto id_of = full.add_shard();
  CoreClient client(full, id_of);
  ASSERT_TRUE(client.open("a", 1));
  ASSERT_TRUE(client.open("b", 1));
  for (std::uint32_t i = 0; i < full.tables(id_of).capacities().ledger_count; ++i) {
    ++full.now_ms;
    ASSERT_TRUE(client.open("x" + std::to_string(i), 1));
    ASSERT_TRUE(client.release("x" + std::to_string(i), 1));
  }
  full.tables(id_of).ledger()[1].id[0] = id("?").words()[0];
  full.restart();
  EXPECT_EQ(full.core->verify(), std::nullopt);
  ASSERT_EQ(full.core->contexts().size(), 1u);
  EXPECT_EQ(full.core->contexts().at(0).session, id("a"));
}

TEST_F(Rebuild, AnyWordOfALedgerRecordCanBeDamaged) {
  // Records are taken in the order of first opening.
  std::uint32_t record = 0;
  for (const char* name : {"a", "b", "c", "d"}) {
    damage_every_word(name, ledger_offset(record++), sizeof(LedgerRecord), {8, 12});
    if (HasFatalFailure()) return;
  }
  damage_whole_record("b", ledger_offset(1), sizeof(LedgerRecord));
}

TEST_F(Rebuild, AnyIndexEntryCanBeDamaged) {
  for (std::uint32_t i = 0; i < tables().capacities().index_count; ++i) {
    for (const std::uint64_t value :
         {std::uint64_t{0}, ~std::uint64_t{0}, std::uint64_t{random()}}) {
      load(healthy);
      tables().index()[i] = value;
      expect_adoption("");
      if (HasFatalFailure()) return;
    }
  }
}

TEST_F(Rebuild, AnyChunkWordCanBeDamaged) {
  for (const auto& [name, length] : lengths) {
    const auto now = worker.resolve(name, 3, length).value();
    worker.unpin(now);
    for (const ChunkIndex chunk : now.chunks) {
      // Values that lead into another context's chain are a test of their own.
      for (const ChunkWord word :
           {ChunkWord{std::nullopt, 1}, ChunkWord{chunk, 1}, ChunkWord{ChunkIndex{31}, 1},
            ChunkWord{ChunkIndex{1'000'000}, 1}, ChunkWord{std::nullopt, ~0u},
            ChunkWord::from_bits(~std::uint64_t{0})}) {
        SCOPED_TRACE(testing::Message() << name << " chunk " << chunk.value());
        load(healthy);
        tables().chunk_word(chunk) = word.bits();
        expect_adoption(name);
        if (HasFatalFailure()) return;
      }
    }
  }
}

TEST_F(Rebuild, AnyKeptHeadCanBeDamaged) {
  const std::size_t offset = layout().kept_heads.value();
  damage_every_word("", offset, sizeof(KeptHeadRecord));
  damage_whole_record("", offset, sizeof(KeptHeadRecord));
  damage_whole_record("", offset + 100 * sizeof(KeptHeadRecord), sizeof(KeptHeadRecord));
}

TEST_F(Rebuild, AnyPageRecordCanBeDamaged) {
  const std::size_t offset = layout().page_records.value();
  // A page whose state is lost is free: its pins are gone and its leases are nobody's.
  damage_every_word("", offset + sizeof(PageRecord), sizeof(PageRecord));
  damage_whole_record("", offset + sizeof(PageRecord), sizeof(PageRecord));
}

// What clients write can be anything.
TEST_F(Rebuild, AnyLengthWordCanBeScribbledOn) {
  for (const auto& [name, length] : lengths) {
    AtomicWord& word = tables().length_word(slot_of(name));
    const auto generation = load_head(tables().slot(slot_of(name)).head).generation.value();
    for (const std::uint64_t value :
         {std::uint64_t{0}, ~std::uint64_t{0},
          LengthWord{Generation{generation}, TokenCount{~0u}}.bits(),
          LengthWord{Generation{generation + 1}, TokenCount{~0u}}.bits(),
          LengthWord{Generation{generation + 1}, TokenCount{17}}.bits(),
          LengthWord{Generation{generation + 1}, TokenCount{0}}.bits(),
          LengthWord{Generation{generation - 1}, TokenCount{1}}.bits(), std::uint64_t{random()}}) {
      SCOPED_TRACE(name);
      load(healthy);
      word = value;
      expect_adoption(name);
      if (HasFatalFailure()) return;
    }
  }
}

TEST_F(Rebuild, WildPagesOfClientsOnlyKeep) {
  for (int round = 0; round < 20; ++round) {
    load(healthy);
    const std::size_t first = layout().client_pages.value();
    for (std::size_t i = 0; i < first + sizeof(ClientPage); ++i) {
      if (i >= 64 * 4 && i < first) continue;
      memory().pages[i] = static_cast<std::byte>(random());
    }
    ASSERT_TRUE(adopt().has_value());
    ASSERT_EQ(h.core->verify(), std::nullopt);
    EXPECT_EQ(h.core->contexts().size(), lengths.size());
  }
}

TEST_F(Rebuild, ExtentsWithoutMemoryTakeTheirContextsAlong) {
  const auto chunk = worker.resolve("d", 3, 47)->chunks.at(1);
  const auto lose_its_memory = [&] {
    AtomicWord& bits = tables().extent_bits()[chunk.value() / 64];
    bits = bits & ~(std::uint64_t{1} << chunk.value() % 64);
  };
  lose_its_memory();
  expect_adoption("d");
  load(healthy);
  lose_its_memory();
  ASSERT_TRUE(adopt().has_value());
  const auto miss = worker.resolve("d", 3, 47).error();
  ASSERT_TRUE(miss.is(MissReason::lost_in_restart));
  EXPECT_EQ(miss.miss().known_length, TokenCount{0});
}

// Nobody can tell which of the two slots is the damaged one, whichever comes first: either may show
// the other's bytes.
TEST_F(Rebuild, OneContextInTwoSlotsIsShownFromNeither) {
  for (const auto& [damaged, named] : {std::pair("b", "a"), std::pair("a", "b")}) {
    SCOPED_TRACE(damaged);
    load(healthy);
    SlotRecord& twin = tables().slot(slot_of(damaged));
    for (std::size_t i = 0; i < SessionId::kWords; ++i) twin.id[i] = id(named).words()[i];
    twin.id_bytes = id(named).size_bytes();
    ASSERT_TRUE(adopt().has_value());
    EXPECT_EQ(h.core->verify(), std::nullopt);
    EXPECT_NE(miss_of(damaged), std::nullopt);
    EXPECT_EQ(miss_of(named), MissReason::lost_in_restart);
    EXPECT_EQ(miss_of("c"), std::nullopt);
  }
}

// Where the epochs differ, the ledger knows which is right, and what it tells is of the right one.
TEST_F(Rebuild, OneSessionInTwoSlotsIsShownFromTheOneOfItsEpoch) {
  SlotRecord& twin = tables().slot(slot_of("b"));
  for (std::size_t i = 0; i < SessionId::kWords; ++i) twin.id[i] = id("a").words()[i];
  twin.id_bytes = id("a").size_bytes();
  twin.epoch = 2;
  expect_adoption("b");
}

}  // namespace
}  // namespace hotkv::test
