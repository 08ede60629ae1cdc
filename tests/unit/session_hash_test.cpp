#include "shared/session_hash.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <set>
#include <string>

namespace hotkv {
namespace {

constexpr std::uint64_t kKey[2] = {0x0123'4567'89ab'cdef, 0xfedc'ba98'7654'3210};

SessionId id_of(std::string_view bytes) {
  return *SessionId::from(bytes);
}

void store_session(SlotRecord& slot, const SessionId& session) {
  slot.id_bytes.store(session.size_bytes());
  for (std::size_t i = 0; i < SessionId::kWords; ++i) slot.id[i].store(session.words()[i]);
}

// FR-106: the same key is the same hash in every process, pinned by literal values.
TEST(SessionHash, IsTheSameInEveryBuild) {
  // Both sides of the index and memory that outlives a daemon depend on these values.
  EXPECT_EQ(session_hash(id_of("a"), kKey), 0x7ff4'dc10'2b8f'1e4du);
  EXPECT_EQ(session_hash(id_of("session-0001"), kKey), 0xed32'5839'4f69'f9eau);
  EXPECT_EQ(session_hash(id_of(std::string(128, '\xff')), kKey), 0x0d1a'7189'8374'8e0fu);
}

TEST(SessionHash, DependsOnBothWordsOfTheKey) {
  const std::uint64_t first[2] = {kKey[0] + 1, kKey[1]};
  const std::uint64_t second[2] = {kKey[0], kKey[1] + 2};
  EXPECT_NE(session_hash(id_of("a"), kKey), session_hash(id_of("a"), first));
  EXPECT_NE(session_hash(id_of("a"), kKey), session_hash(id_of("a"), second));
}

TEST(SessionHash, DependsOnEveryByteAndTheLength) {
  std::set<std::uint64_t> hashes;
  std::size_t count = 0;
  for (std::size_t size = 1; size <= SessionId::kBytesMax; ++size) {
    hashes.insert(session_hash(id_of(std::string(size, '\0')), kKey));
    ++count;
    std::string bytes(SessionId::kBytesMax, 'x');
    bytes[size - 1] = 'y';
    hashes.insert(session_hash(id_of(bytes), kKey));
    ++count;
  }
  EXPECT_EQ(hashes.size(), count);
}

TEST(SessionHash, SpreadsCountedNamesOverAHalfFullIndex) {
  constexpr std::size_t kIndexCount = 1 << 14;
  std::vector<bool> taken(kIndexCount);
  std::size_t probes_max = 0;
  for (std::size_t i = 0; i < kIndexCount / 2; ++i) {
    const std::uint64_t hash = session_hash(id_of("session-" + std::to_string(i)), kKey);
    std::size_t probes = 1;
    std::size_t place = hash % kIndexCount;
    while (taken[place]) {
      place = (place + 1) % kIndexCount;
      ++probes;
    }
    taken[place] = true;
    probes_max = std::max(probes_max, probes);
  }
  EXPECT_LT(probes_max, kIndexProbesMax / 2);
}

TEST(IndexEntry, KeepsSlotAndTagApart) {
  for (const std::uint64_t hash : {std::uint64_t{0}, ~std::uint64_t{0}, kKey[0]}) {
    for (const std::uint32_t slot : {0u, 1u, 0x3fff'ffffu, 0xffff'fffeu}) {
      const std::uint64_t entry = index_entry(hash, SlotIndex{slot});
      EXPECT_NE(entry, 0u) << "zero is the empty entry";
      EXPECT_EQ(index_slot(entry), SlotIndex{slot});
      EXPECT_TRUE(index_tag_matches(entry, hash));
      EXPECT_FALSE(index_tag_matches(entry, hash ^ (std::uint64_t{1} << 32)));
      EXPECT_FALSE(index_tag_matches(entry, hash ^ (std::uint64_t{1} << 63)));
    }
  }
}

TEST(SlotHasSession, OnlyIfEveryByteAndTheLengthAreTheSame) {
  std::string bytes(SessionId::kBytesMax, 'a');
  SlotRecord slot{};
  store_session(slot, id_of(bytes));
  EXPECT_TRUE(slot_has_session(slot, id_of(bytes)));
  for (std::size_t i = 0; i < bytes.size(); ++i) {
    std::string other = bytes;
    other[i] ^= 1;
    EXPECT_FALSE(slot_has_session(slot, id_of(other))) << i;
  }
  EXPECT_FALSE(slot_has_session(slot, id_of(bytes.substr(1))));
}

TEST(SlotHasSession, TellsTrailingZeroBytesApart) {
  SlotRecord slot{};
  store_session(slot, id_of("a"));
  EXPECT_TRUE(slot_has_session(slot, id_of("a")));
  EXPECT_FALSE(slot_has_session(slot, id_of(std::string_view("a\0", 2))));
}

TEST(SlotHasSession, AnEmptySlotHasNone) {
  const SlotRecord slot{};
  EXPECT_FALSE(slot_has_session(slot, id_of(std::string_view("\0", 1))));
}

}  // namespace
}  // namespace hotkv
