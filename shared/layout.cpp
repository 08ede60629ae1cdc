#include "shared/layout.hpp"

#include <algorithm>
#include <cstddef>
#include <cstring>
#include <string>
#include <utility>

namespace hotkv {
namespace {

// Ends of generations that one message can cause before its sweep.
constexpr std::uint32_t kKeptHeadsOfOneMessage = 1024;

constexpr std::uint64_t round_up(std::uint64_t value, std::uint64_t unit) {
  return (value + unit - 1) / unit * unit;
}

std::string_view padded_text(std::span<const char> field) {
  return {field.data(), strnlen(field.data(), field.size())};
}

Error damaged(std::string field, std::string cause) {
  return Error{ErrorCode::shard_damaged, "check header", std::move(field), std::move(cause)};
}

}  // namespace

RecipeRecord encode_recipe(const Recipe& recipe) {
  const RecipeFields& fields = recipe.fields();
  RecipeRecord record{};
  std::ranges::copy(fields.architecture, record.architecture);
  std::ranges::copy(fields.model_id, record.model_id);
  record.dtype = static_cast<std::uint32_t>(fields.dtype);
  record.kv_heads = fields.kv_heads;
  record.key_dim = fields.key_dim;
  record.value_dim = fields.value_dim;
  record.first_layer = fields.layers.first;
  record.last_layer = fields.layers.last;
  return record;
}

std::expected<Recipe, Error> decode_recipe(const RecipeRecord& untrusted_record,
                                           std::span<const std::string> certified_architectures) {
  RecipeFields fields;
  fields.architecture = padded_text(untrusted_record.architecture);
  fields.model_id = padded_text(untrusted_record.model_id);
  fields.dtype = static_cast<DType>(untrusted_record.dtype);
  fields.kv_heads = untrusted_record.kv_heads;
  fields.key_dim = untrusted_record.key_dim;
  fields.value_dim = untrusted_record.value_dim;
  fields.layers = {untrusted_record.first_layer, untrusted_record.last_layer};
  const std::pair<const char*, std::span<const char>> names[] = {
      {"architecture", untrusted_record.architecture}, {"model_id", untrusted_record.model_id}};
  for (const auto& [field, bytes] : names) {
    const auto behind = bytes.subspan(padded_text(bytes).size());
    if (std::ranges::any_of(behind, [](char c) { return c != 0; })) {
      return std::unexpected(Error{ErrorCode::invalid_argument, "decode recipe", field,
                                   "bytes behind the end of the name"});
    }
  }
  return Recipe::make(std::move(fields), certified_architectures);
}

GeometryRecord encode_geometry(const Geometry& g) {
  return {g.layer_count,     g.chunk_tokens,      g.key_row_bytes,
          g.value_row_bytes, g.chunk_bytes,       g.chunk_stride_bytes,
          g.extent_bytes,    g.chunks_per_extent, g.extent_count};
}

Geometry decode_geometry(const GeometryRecord& record) {
  Geometry g;
  g.layer_count = record.layer_count;
  g.chunk_tokens = record.chunk_tokens;
  g.key_row_bytes = record.key_row_bytes;
  g.value_row_bytes = record.value_row_bytes;
  g.chunk_bytes = record.chunk_bytes;
  g.chunk_stride_bytes = record.chunk_stride_bytes;
  g.extent_bytes = record.extent_bytes;
  g.chunks_per_extent = record.chunks_per_extent;
  g.extent_count = record.extent_count;
  g.chunk_count = record.extent_count * record.chunks_per_extent;
  return g;
}

FileLayout FileLayout::of(const Capacities& capacities, const Geometry& geometry) {
  FileLayout layout;
  std::uint64_t end = kPageBytes;  // the header's page
  static_assert(sizeof(TablesHeader) <= kPageBytes);
  const auto place = [&end](std::uint64_t count, std::uint64_t record_bytes) {
    const ByteOffset offset{end};
    end = round_up(end + count * record_bytes, kPageBytes);
    return offset;
  };
  layout.slots = place(capacities.slot_count, sizeof(SlotRecord));
  layout.index = place(capacities.index_count, sizeof(IndexEntry));
  layout.ledger = place(capacities.ledger_count, sizeof(LedgerRecord));
  layout.chunk_words = place(capacities.chunk_count, sizeof(AtomicWord));
  layout.chunk_seals = place(capacities.chunk_count, sizeof(AtomicWord));
  layout.kept_heads = place(capacities.kept_head_count, sizeof(KeptHeadRecord));
  layout.page_records = place(capacities.page_count, sizeof(PageRecord));
  layout.extent_bits = place(extent_words(geometry.extent_count), sizeof(AtomicWord));
  layout.tables_bytes = end;

  layout.chunks = ByteOffset{round_up(capacities.slot_count * sizeof(LengthLine), kHugePageBytes)};
  layout.arena_bytes =
      layout.chunks.value() + std::uint64_t{geometry.extent_count} * geometry.extent_bytes;

  layout.client_pages = ByteOffset{round_up(capacities.slot_count * sizeof(TouchWord), kPageBytes)};
  layout.pages_bytes =
      layout.client_pages.value() + std::uint64_t{capacities.page_count} * sizeof(ClientPage);
  return layout;
}

Capacities capacities_for(std::uint32_t contexts_max, std::uint32_t tombstones,
                          std::uint32_t page_count, const Geometry& geometry) {
  Capacities capacities;
  // Room for slots that wear out, and for a cap that a later configuration raises somewhat.
  capacities.slot_count = contexts_max + contexts_max / 4 + 16;
  capacities.index_count = std::bit_ceil(capacities.slot_count * 2);
  capacities.ledger_count = capacities.slot_count + std::max<std::uint32_t>(tombstones, 1);
  capacities.kept_head_count = page_count * kPinsPerPage + kKeptHeadsOfOneMessage;
  capacities.page_count = page_count;
  capacities.chunk_count = geometry.chunk_count;
  return capacities;
}

// FNV-1a over 64 bits: each step maps its state one to one, so no change of a single byte is
// missed. (Fowler, Noll, Vo; draft-eastlake-fnv.)
static std::uint64_t checksum_of(const TablesHeader& header) {
  std::uint64_t hash = 0xcbf2'9ce4'8422'2325;
  const auto add = [&](std::size_t from, std::size_t to) {
    const auto* const bytes = reinterpret_cast<const unsigned char*>(&header);
    for (std::size_t i = from; i < to; ++i) hash = (hash ^ bytes[i]) * 0x100'0000'01b3;
  };
  add(offsetof(TablesHeader, layout_version), offsetof(TablesHeader, state));
  add(offsetof(TablesHeader, owner_uid), offsetof(TablesHeader, checksum));
  return hash;
}

void seal_header(TablesHeader& header) {
  header.checksum = checksum_of(header);
}

std::expected<void, Error> check_header(const TablesHeader& header) {
  if (header.magic.load(std::memory_order_acquire) != kTablesMagic) {
    return std::unexpected(damaged("magic", "not the tables of a hotkv shard, or half made"));
  }
  if (header.layout_version != kLayoutVersion || header.header_bytes != sizeof(TablesHeader) ||
      header.layout_fingerprint != kLayoutFingerprint) {
    return std::unexpected(Error{ErrorCode::unsupported_version, "check header", "layout",
                                 "found version " + std::to_string(header.layout_version) +
                                     ", need " + std::to_string(kLayoutVersion)});
  }
  const std::uint32_t state = header.state.load(std::memory_order_relaxed);
  if (header.boot_token == 0 || (state != static_cast<std::uint32_t>(ShardState::open) &&
                                 state != static_cast<std::uint32_t>(ShardState::closed))) {
    return std::unexpected(damaged("boot token or state", "is not one that is ever written"));
  }
  const Capacities& c = header.capacities;
  const GeometryRecord& g = header.geometry;
  // Bounds that keep every later product of a count and a record's size far below 2^64.
  constexpr std::uint32_t kCountMax = std::uint32_t{1} << 30;
  if (c.slot_count == 0 || c.slot_count > kCountMax || !std::has_single_bit(c.index_count) ||
      c.index_count / 2 < c.slot_count || c.ledger_count <= c.slot_count ||
      c.ledger_count > kCountMax || c.page_count == 0 || c.page_count > kCountMax / kPinsPerPage ||
      c.kept_head_count < c.page_count * kPinsPerPage || c.kept_head_count > kCountMax * 2) {
    return std::unexpected(damaged("capacities", "contradict each other"));
  }
  constexpr std::uint64_t kBytesMax = std::uint64_t{1} << 47;
  std::uint64_t layer_row = 0;
  std::uint64_t chunk = 0;
  std::uint64_t extents = 0;
  const bool sane =
      g.layer_count >= 1 && g.layer_count <= Recipe::kLayersMax && g.chunk_tokens >= 1 &&
      g.key_row_bytes >= 1 && g.key_row_bytes < kBytesMax && g.value_row_bytes < kBytesMax &&
      !__builtin_mul_overflow(g.key_row_bytes + g.value_row_bytes, g.layer_count, &layer_row) &&
      !__builtin_mul_overflow(layer_row, g.chunk_tokens, &chunk) && chunk == g.chunk_bytes &&
      chunk <= kChunkBytesMax && g.chunk_stride_bytes == round_up(chunk, kPageBytes) &&
      g.extent_bytes >= g.chunk_stride_bytes && g.extent_bytes % kPageBytes == 0 &&
      g.chunks_per_extent == g.extent_bytes / g.chunk_stride_bytes && g.extent_count >= 1 &&
      !__builtin_mul_overflow(g.extent_bytes, std::uint64_t{g.extent_count}, &extents) &&
      extents <= kBytesMax && std::uint64_t{g.extent_count} * g.chunks_per_extent == c.chunk_count;
  if (!sane) return std::unexpected(damaged("geometry", "sizes contradict each other"));
  const FileLayout layout = FileLayout::of(c, decode_geometry(g));
  if (layout.tables_bytes != header.tables_bytes || layout.arena_bytes != header.arena_bytes ||
      layout.pages_bytes != header.pages_bytes) {
    return std::unexpected(damaged("file sizes", "are not those of the capacities"));
  }
  if (header.checksum != checksum_of(header)) {
    return std::unexpected(damaged("checksum", "is not that of the header"));
  }
  return {};
}

}  // namespace hotkv
