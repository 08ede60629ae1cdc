#include "daemon/core/shard_tables.hpp"

#include <array>
#include <cstring>

namespace hotkv::core {
namespace {

template <class Record>
std::span<Record> records_at(std::span<std::byte> file, ByteOffset offset, std::uint64_t count) {
  return {reinterpret_cast<Record*>(file.data() + offset.value()), count};
}

}  // namespace

ShardTables::ShardTables(ShardMemory memory, const Capacities& capacities, const Geometry& geometry)
    : capacities_(capacities),
      geometry_(geometry),
      layout_(FileLayout::of(capacities, geometry)),
      header_(reinterpret_cast<TablesHeader*>(memory.tables.data())),
      slots_(records_at<SlotRecord>(memory.tables, layout_.slots, capacities.slot_count)),
      index_(records_at<IndexEntry>(memory.tables, layout_.index, capacities.index_count)),
      ledger_(records_at<LedgerRecord>(memory.tables, layout_.ledger, capacities.ledger_count)),
      chunk_words_(
          records_at<AtomicWord>(memory.tables, layout_.chunk_words, capacities.chunk_count)),
      chunk_seals_(
          records_at<AtomicWord>(memory.tables, layout_.chunk_seals, capacities.chunk_count)),
      kept_heads_(records_at<KeptHeadRecord>(memory.tables, layout_.kept_heads,
                                             capacities.kept_head_count)),
      page_records_(
          records_at<PageRecord>(memory.tables, layout_.page_records, capacities.page_count)),
      extent_bits_(records_at<AtomicWord>(memory.tables, layout_.extent_bits,
                                          extent_words(geometry.extent_count))),
      lengths_(records_at<LengthLine>(memory.arena, ByteOffset{0}, capacities.slot_count)),
      chunks_(memory.arena.subspan(layout_.chunks.value())),
      touches_(records_at<TouchWord>(memory.pages, ByteOffset{0}, capacities.slot_count)),
      client_pages_(
          records_at<ClientPage>(memory.pages, layout_.client_pages, capacities.page_count)) {}

void ShardTables::format(ShardMemory memory, const ShardPlan& plan, const ShardIdentity& identity) {
  auto& header = *reinterpret_cast<TablesHeader*>(memory.tables.data());
  header.layout_version = kLayoutVersion;
  header.header_bytes = sizeof(TablesHeader);
  header.layout_fingerprint = kLayoutFingerprint;
  header.boot_token = identity.boot_token;
  header.state.store(static_cast<std::uint32_t>(ShardState::open), std::memory_order_relaxed);
  header.owner_uid = plan.owner_uid;
  header.hash_key[0] = identity.hash_key[0];
  header.hash_key[1] = identity.hash_key[1];
  header.arena_inode = identity.arena_inode;
  header.pages_inode = identity.pages_inode;
  header.recipe = encode_recipe(plan.recipe);
  header.capacities = plan.capacities;
  header.geometry = encode_geometry(plan.geometry);
  header.tables_bytes = plan.layout.tables_bytes;
  header.arena_bytes = plan.layout.arena_bytes;
  header.pages_bytes = plan.layout.pages_bytes;
  seal_header(header);
  header.magic.store(kTablesMagic, std::memory_order_release);
}

std::optional<SessionId> read_session_id(const std::atomic<std::uint32_t>& id_bytes,
                                         std::span<const AtomicWord> words) {
  std::array<std::uint64_t, SessionId::kWords> copy;
  for (std::size_t i = 0; i < copy.size(); ++i) {
    copy[i] = words[i].load(std::memory_order_relaxed);
  }
  const std::uint32_t size = id_bytes.load(std::memory_order_relaxed);
  if (size == 0 || size > SessionId::kBytesMax) return std::nullopt;
  auto id = SessionId::from({reinterpret_cast<const char*>(copy.data()), size});
  if (!id || id->words() != copy) return std::nullopt;  // padding must be zero
  return *id;
}

}  // namespace hotkv::core
