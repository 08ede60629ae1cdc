#pragma once
// A shard's three files as typed tables.

#include <cstdint>
#include <span>

#include <hotkv/types.hpp>

#include "daemon/core/core.hpp"
#include "shared/geometry.hpp"
#include "shared/layout.hpp"

namespace hotkv::core {

// Pointers into ShardMemory, which outlives them. Indexing takes indices that were checked before.
class ShardTables {
 public:
  // The memory has at least the sizes of FileLayout::of(capacities, geometry).
  ShardTables(ShardMemory memory, const Capacities& capacities, const Geometry& geometry);

  // Writes the header of a new shard into zeroed memory; the magic last.
  static void format(ShardMemory memory, const ShardPlan& plan, const ShardIdentity& identity);

  [[nodiscard]] TablesHeader& header() const { return *header_; }
  [[nodiscard]] const Capacities& capacities() const { return capacities_; }
  [[nodiscard]] const Geometry& geometry() const { return geometry_; }

  [[nodiscard]] SlotRecord& slot(SlotIndex slot) const { return slots_[slot.value()]; }
  [[nodiscard]] AtomicWord& length_word(SlotIndex slot) const {
    return lengths_[slot.value()].word;
  }
  // Written by clients; see touch_age_ms.
  [[nodiscard]] TouchWord& untrusted_touch(SlotIndex slot) const { return touches_[slot.value()]; }
  [[nodiscard]] std::span<IndexEntry> index() const { return index_; }
  [[nodiscard]] std::span<LedgerRecord> ledger() const { return ledger_; }
  [[nodiscard]] AtomicWord& chunk_word(ChunkIndex chunk) const {
    return chunk_words_[chunk.value()];
  }
  // chunk_seal of a chunk that is in a chain; 0 of a free one.
  [[nodiscard]] AtomicWord& chunk_seal(ChunkIndex chunk) const {
    return chunk_seals_[chunk.value()];
  }
  // Whether an extent's memory is accounted for: bit `extent % 64` of word `extent / 64`.
  [[nodiscard]] std::span<AtomicWord> extent_bits() const { return extent_bits_; }
  [[nodiscard]] std::span<KeptHeadRecord> kept_heads() const { return kept_heads_; }
  [[nodiscard]] PageRecord& page_record(PageIndex page) const {
    return page_records_[page.value()];
  }
  // Written by its client.
  [[nodiscard]] ClientPage& untrusted_page(PageIndex page) const {
    return client_pages_[page.value()];
  }
  [[nodiscard]] std::span<std::byte> chunk(ChunkIndex chunk) const {
    return chunks_.subspan(geometry_.chunk_offset(chunk).value(), geometry_.chunk_bytes);
  }
  [[nodiscard]] ByteOffset first_chunk_offset() const { return layout_.chunks; }

 private:
  Capacities capacities_;
  Geometry geometry_;
  FileLayout layout_;
  TablesHeader* header_;
  std::span<SlotRecord> slots_;
  std::span<IndexEntry> index_;
  std::span<LedgerRecord> ledger_;
  std::span<AtomicWord> chunk_words_;
  std::span<AtomicWord> chunk_seals_;
  std::span<KeptHeadRecord> kept_heads_;
  std::span<PageRecord> page_records_;
  std::span<AtomicWord> extent_bits_;
  std::span<LengthLine> lengths_;
  std::span<std::byte> chunks_;
  std::span<TouchWord> touches_;
  std::span<ClientPage> client_pages_;
};

// The session id of a slot or ledger record; nothing if the record holds none that is valid.
[[nodiscard]] std::optional<SessionId> read_session_id(const std::atomic<std::uint32_t>& id_bytes,
                                                       std::span<const AtomicWord> words);

}  // namespace hotkv::core
