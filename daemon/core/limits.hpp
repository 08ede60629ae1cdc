#pragma once
// Every bound the core keeps, with its unit.

#include <cstdint>

namespace hotkv::core {

struct Limits {
  std::uint64_t max_bytes = std::uint64_t{1} << 30;  // provisioned extents, all shards together
  std::uint64_t max_bytes_per_owner = 0;             // of one uid; 0 = no bound of its own
  std::uint32_t session_cap = 4096;                  // live contexts of one shard
  std::uint64_t ttl_ms = 30 * 60 * 1000;             // unused for longer: expires; 0 = never
  std::uint64_t tombstone_ttl_ms = 60 * 60 * 1000;   // fates are meant to be remembered this long
  std::uint32_t tombstones = 16384;                  // remembered ended sessions of one shard
  std::uint32_t max_shards = 64;
  std::uint32_t max_shards_per_owner = 16;
  std::uint32_t clients_per_shard = 256;    // pages
  std::uint32_t waiting_grants_max = 1024;  // appends that wait for memory
  std::uint32_t chunk_tokens = 0;           // of new shards; 0 = chosen from the recipe
  bool huge_pages = false;                  // extents of new shards are huge pages
};

// After an adoption, so long does the lease of a client that lives wait for it to come back; an
// OPEN by another is told session_busy, as if it were connected. Clients try within some
// milliseconds.
inline constexpr std::uint64_t kReturnGraceMs = 5000;

}  // namespace hotkv::core
