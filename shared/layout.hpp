#pragma once
// The layout of a shard's three files: the binary interface between daemon and clients.
//
//   tables  clients map read-only; only the daemon writes
//   arena   length lines, then chunks; writers map read-write, readers read-only
//   pages   touch words, then one page of pin words per client; each client maps its own page
//
// All integers are little-endian, all places are offsets. Reserved bytes are zero.

#include <array>
#include <atomic>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <expected>
#include <type_traits>

#include <hotkv/cache_miss.hpp>
#include <hotkv/recipe.hpp>
#include <hotkv/types.hpp>

#include "shared/geometry.hpp"
#include "shared/words.hpp"

namespace hotkv {

static_assert(std::endian::native == std::endian::little, "the layout is little-endian");

// "hotkvtbl"; written last when a tables file is made.
inline constexpr std::uint64_t kTablesMagic = 0x6c62'7476'6b74'6f68;
// Bump when any struct below or the meaning of any word changes. Cost of a bump: a daemon of the
// new version cannot adopt the memory of the old one, so that restart is cold.
inline constexpr std::uint32_t kLayoutVersion = 3;

// ---- tables: slots ------------------------------------------------------------------------------

// States of a slot, daemon's word; clients decide by the head word alone.
//
//   free -> opening -> live -> retiring(reason) -> free
//                                              \-> worn_out   (its generations are used up)
//
// Stored as the number below; retiring is kRetiringBase + MissReason.
enum class SlotState : std::uint32_t { free = 0, opening = 1, live = 2, worn_out = 3 };
inline constexpr std::uint32_t kRetiringBase = 16;

// Generations end here: a slot whose head reaches it is worn out once it is free.
inline constexpr std::uint32_t kGenerationMax = 0xffff'fff0;

// One context. Every word: daemon writes, clients read; see words.hpp for the order of access.
struct alignas(64) SlotRecord {
  AtomicWord head;                      // HeadWord; 0 = generation 0, free
  AtomicWord epoch;                     // valid while the head is not free
  std::atomic<std::uint32_t> id_bytes;  // 1 to 128 while the head is not free
  std::atomic<std::uint32_t> state;     // SlotState or kRetiringBase + MissReason
  std::atomic<std::uint32_t> holder;    // page of the lease's holder + 1; 0 = nobody
  std::uint32_t reserved0;
  AtomicWord opened_ms;  // CLOCK_MONOTONIC
  AtomicWord used_ms;    // CLOCK_MONOTONIC, last use the daemon itself saw
  AtomicWord seals[2];   // of a live slot one is head_seal of daemon/core/seals.hpp, else 0
  AtomicWord id[SessionId::kWords];  // zero-padded
};
static_assert(sizeof(SlotRecord) == 192 && alignof(SlotRecord) == 64);
static_assert(offsetof(SlotRecord, id) == 64);

// ---- tables: index ------------------------------------------------------------------------------

// Open addressing with linear probing, at most half full. An entry is {tag, slot + 1}: tag is the
// high half of the id's hash, 0 = empty. Removal shifts later entries back, writing the new place
// before the old one is cleared; a client that probes meanwhile can miss an entry and then asks the
// daemon, which has the last word on every miss.
using IndexEntry = AtomicWord;
// Probes of one look-up; an insertion that would need more is refused (a flood of ids that collide
// can only hurt the shard of the uid that sends it).
inline constexpr std::uint32_t kIndexProbesMax = 128;

// ---- tables: ledger (epoch table and tombstones) ------------------------------------------------

// One remembered session: its highest epoch and the fate of its last context. Daemon only.
struct alignas(64) LedgerRecord {
  std::atomic<std::uint32_t> state;  // 0 = empty, 1 = valid; stored last
  std::atomic<std::uint32_t> id_bytes;
  AtomicWord epoch;                        // highest seen; only rises while valid
  std::atomic<std::uint32_t> fate;         // MissReason; 0 = a live context or one never completed
  std::atomic<std::uint32_t> last_length;  // tokens, where fate is not 0
  AtomicWord ended_ms;                     // CLOCK_MONOTONIC, where fate is not 0
  std::uint64_t reserved[4];
  AtomicWord id[SessionId::kWords];
};
static_assert(sizeof(LedgerRecord) == 192 && offsetof(LedgerRecord, id) == 64);

// ---- tables: kept heads, pages ------------------------------------------------------------------

// An old head that still owns its chain. `slot` is stored last and cleared first.
struct KeptHeadRecord {
  AtomicWord head;                  // HeadWord of the ended generation
  std::atomic<std::uint32_t> slot;  // slot + 1; 0 = unused record
  std::uint32_t reserved;
};
static_assert(sizeof(KeptHeadRecord) == 16);

enum class PageState : std::uint32_t { free = 0, taken = 1 };

// Who has a page of the pages file. Daemon writes.
struct PageRecord {
  std::atomic<std::uint32_t> state;   // PageState; stored last
  std::atomic<std::uint32_t> access;  // Access
  AtomicWord cookie;                  // random; names the page when its client comes back
  std::atomic<std::uint32_t> pid;     // for people only; 0 = unknown
  std::uint32_t reserved[3];
};
static_assert(sizeof(PageRecord) == 32);

// ---- tables: extents ----------------------------------------------------------------------------

// One bit an extent: set once its memory is there, cleared before it is given back. A daemon that
// takes the files over trusts the bits and gives back whatever else the kernel holds. (The kernel
// cannot be asked: of memory that nobody has written yet it says the same as of a hole.)
[[nodiscard]] constexpr std::uint64_t extent_words(std::uint32_t extent_count) {
  return (std::uint64_t{extent_count} + 63) / 64;
}

// ---- tables: header -----------------------------------------------------------------------------

// A recipe in memory and on the wire.
struct RecipeRecord {
  char architecture[Recipe::kArchitectureBytesMax];  // zero-padded
  char model_id[Recipe::kModelIdBytesMax];           // zero-padded
  std::uint32_t dtype;
  std::uint32_t kv_heads;
  std::uint32_t key_dim;
  std::uint32_t value_dim;
  std::uint32_t first_layer;
  std::uint32_t last_layer;
};
static_assert(sizeof(RecipeRecord) == 216 &&
              std::has_unique_object_representations_v<RecipeRecord>);

[[nodiscard]] RecipeRecord encode_recipe(const Recipe& recipe);
// Every check of Recipe::make. The record is untrusted.
[[nodiscard]] std::expected<Recipe, Error> decode_recipe(
    const RecipeRecord& untrusted_record, std::span<const std::string> certified_architectures);

// How many of everything a shard's tables hold, fixed when the shard is made.
struct Capacities {
  std::uint32_t slot_count = 0;
  std::uint32_t index_count = 0;      // a power of two, at least twice slot_count
  std::uint32_t ledger_count = 0;     // more than slot_count
  std::uint32_t kept_head_count = 0;  // every pin word can hold one, and the ends of one message
  std::uint32_t page_count = 0;       // clients
  std::uint32_t chunk_count = 0;
  friend bool operator==(const Capacities&, const Capacities&) = default;
};
static_assert(sizeof(Capacities) == 24);

struct GeometryRecord {
  std::uint32_t layer_count;
  std::uint32_t chunk_tokens;
  std::uint64_t key_row_bytes;
  std::uint64_t value_row_bytes;
  std::uint64_t chunk_bytes;
  std::uint64_t chunk_stride_bytes;
  std::uint64_t extent_bytes;
  std::uint32_t chunks_per_extent;
  std::uint32_t extent_count;
};
static_assert(sizeof(GeometryRecord) == 56 &&
              std::has_unique_object_representations_v<GeometryRecord>);

[[nodiscard]] GeometryRecord encode_geometry(const Geometry& geometry);
[[nodiscard]] Geometry decode_geometry(const GeometryRecord& record);

enum class ShardState : std::uint32_t { open = 1, closed = 2 };

struct TablesHeader {
  AtomicWord magic;                  // kTablesMagic; stored last
  std::uint32_t layout_version;      // kLayoutVersion
  std::uint32_t header_bytes;        // sizeof(TablesHeader)
  std::uint64_t layout_fingerprint;  // kLayoutFingerprint
  std::uint64_t boot_token;          // random, never 0; one per life of this memory
  std::atomic<std::uint32_t> state;  // ShardState
  std::uint32_t owner_uid;
  std::uint64_t hash_key[2];  // random; keys the index's hash
  RecipeRecord recipe;
  Capacities capacities;
  GeometryRecord geometry;
  std::uint64_t tables_bytes;  // sizes of the three files
  std::uint64_t arena_bytes;
  std::uint64_t pages_bytes;
  // Which files belong to these tables. Neither of the two can say so itself: clients write in
  // them.
  std::uint64_t arena_inode;
  std::uint64_t pages_inode;
  // Of all but magic and state, which never change. A header of which anything else is another says
  // whose the memory is and what it holds: it must not be believed.
  std::uint64_t checksum;
};
static_assert(sizeof(TablesHeader) == 400);

// Sets the checksum; before the magic is stored.
void seal_header(TablesHeader& header);

// ---- arena --------------------------------------------------------------------------------------

// A context's published length, alone on its cache line: writers of different contexts publish from
// different cores. Writer and daemon exchange it; the daemon checks what it reads.
struct alignas(64) LengthLine {
  AtomicWord word;  // LengthWord; 0 = generation 0, no tokens
  std::uint64_t reserved[7];
};
static_assert(sizeof(LengthLine) == 64);

// ---- pages --------------------------------------------------------------------------------------

// Pin words of one client: views and writers it can hold at once, over all its threads.
inline constexpr std::uint32_t kPinsPerPage = 1016;

// One client's page. The client writes, the daemon reads and range-checks; the daemon zeroes it
// when the client is gone.
struct alignas(kPageBytes) ClientPage {
  std::atomic<std::uint32_t> high_water;  // pin words in use lie below it; only rises
  std::uint32_t reserved0;
  std::uint64_t reserved1[7];
  AtomicWord pins[kPinsPerPage];  // PinWord; 0 = no claim
};
static_assert(sizeof(ClientPage) == 2 * kPageBytes && offsetof(ClientPage, pins) == 64);

using TouchWord = std::atomic<std::uint32_t>;
static_assert(TouchWord::is_always_lock_free && sizeof(TouchWord) == 4);

// ---- places -------------------------------------------------------------------------------------

// Changes when any size above changes, even if somebody forgets the version.
inline constexpr std::uint64_t kLayoutFingerprint =
    ((((((((((sizeof(SlotRecord) * 1021 + sizeof(LedgerRecord)) * 1021 + sizeof(KeptHeadRecord)) *
                1021 +
            sizeof(PageRecord)) *
               1021 +
           sizeof(RecipeRecord)) *
              1021 +
          sizeof(Capacities)) *
             1021 +
         sizeof(GeometryRecord)) *
            1021 +
        sizeof(TablesHeader)) *
           1021 +
       sizeof(LengthLine)) *
          1021 +
      sizeof(ClientPage)) *
         1021 +
     kPinsPerPage);

// Offsets and sizes of the parts of the three files, computed by one function for both sides.
struct FileLayout {
  // tables
  ByteOffset slots, index, ledger, chunk_words, chunk_seals, kept_heads, page_records, extent_bits;
  std::uint64_t tables_bytes = 0;
  // arena: length lines from 0
  ByteOffset chunks;  // first chunk, at a multiple of a huge page
  std::uint64_t arena_bytes = 0;
  // pages: touch words from 0
  ByteOffset client_pages;
  std::uint64_t pages_bytes = 0;

  // Capacities and geometry must be sane (made here, or checked by check_header).
  [[nodiscard]] static FileLayout of(const Capacities& capacities, const Geometry& geometry);
  [[nodiscard]] ByteOffset client_page(PageIndex page) const {
    return ByteOffset{client_pages.value() + page.value() * sizeof(ClientPage)};
  }
};

// Capacities of a shard for `contexts_max` live contexts, `tombstones` remembered ended sessions
// beyond the live ones, and `page_count` clients.
[[nodiscard]] Capacities capacities_for(std::uint32_t contexts_max, std::uint32_t tombstones,
                                        std::uint32_t page_count, const Geometry& geometry);

// Is this the header of a shard that this build can use, and do its sizes agree with each other?
// Errors: unsupported_version (found, needed), shard_damaged naming the field.
[[nodiscard]] std::expected<void, Error> check_header(const TablesHeader& untrusted_header);

}  // namespace hotkv
