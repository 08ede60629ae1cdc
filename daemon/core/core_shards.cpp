#include <algorithm>
#include <array>
#include <limits>
#include <string>

#include "daemon/core/core.hpp"
#include "daemon/core/core_impl.hpp"
#include "daemon/core/rebuild.hpp"

namespace hotkv::core {
namespace {

// Size of an arena, in budgets.
constexpr std::uint64_t kArenaBudgets = 2;

ExtentRange range_of(const Shard& shard, ExtentIndex first, std::uint32_t count) {
  const Geometry& g = shard.tables.geometry();
  return {shard.id,
          ByteOffset{shard.tables.first_chunk_offset().value() + g.extent_offset(first).value()},
          count * g.extent_bytes};
}

}  // namespace

std::optional<ShardId> Core::find_shard(const ShardKey& key) const {
  const Shard* shard = impl_->shards.find(key);
  if (shard == nullptr) return std::nullopt;
  return shard->id;
}

bool Core::Impl::drop_empty_shard(std::optional<std::uint32_t> owner_uid) {
  for (auto& [id, shard] : shards.map()) {
    if (owner_uid && shard->key.owner_uid != *owner_uid) continue;
    reap(*shard);
    if (shard->sessions.live_count() != 0 || shard->pages.taken_count() != 0 ||
        grants.has_orders_for(id)) {
      continue;
    }
    dropped.push_back(id);
    shards.map().erase(id);
    return true;
  }
  return false;
}

std::expected<ShardPlan, Error> Core::plan_shard(std::uint32_t owner_uid, const Recipe& recipe) {
  const auto& map = impl_->shards.map();
  const std::string object = "model \"" + escape_bytes(recipe.fields().model_id) + '"';
  const auto owned = [&] {
    return std::ranges::count_if(
        map, [&](const auto& entry) { return entry.second->key.owner_uid == owner_uid; });
  };
  const Limits& limits = impl_->limits;
  if (std::cmp_greater_equal(owned(), limits.max_shards_per_owner) &&
      !impl_->drop_empty_shard(owner_uid)) {
    return std::unexpected(Error{ErrorCode::too_many_shards, "attach", object,
                                 "uid " + std::to_string(owner_uid) + " has " +
                                     std::to_string(owned()) + " shards, the most for one owner"});
  }
  if (map.size() >= limits.max_shards && !impl_->drop_empty_shard(std::nullopt)) {
    return std::unexpected(
        Error{ErrorCode::too_many_shards, "attach", object,
              "there are " + std::to_string(map.size()) + " shards, the most for this daemon"});
  }
  // The arena's size is a limit, not memory, made large at birth: one shard may come to use the
  // whole budget, also while extents of its own are still on their way out, and a budget that is
  // raised.
  auto geometry = Geometry::make(
      recipe, {limits.chunk_tokens, limits.huge_pages, limits.max_bytes * kArenaBudgets});
  if (!geometry) return std::unexpected(geometry.error());
  const Capacities capacities =
      capacities_for(limits.session_cap, limits.tombstones, limits.clients_per_shard, *geometry);
  return ShardPlan{owner_uid, recipe, *geometry, capacities, FileLayout::of(capacities, *geometry)};
}

ShardId Core::add_shard(const ShardPlan& plan, ShardMemory memory, const ShardIdentity& identity) {
  ShardTables::format(memory, plan, identity);
  const ShardId id{impl_->next_shard_id++};
  impl_->shards.map().emplace(id, std::make_unique<Shard>(id, plan.recipe, memory, plan.capacities,
                                                          plan.geometry, impl_->gate));
  return id;
}

std::expected<ShardId, Error> Core::adopt_shard(
    ShardMemory memory, std::span<const std::string> certified_architectures) {
  const auto damaged = [](std::string field, std::string cause) {
    return std::unexpected(
        Error{ErrorCode::shard_damaged, "adopt", std::move(field), std::move(cause)});
  };
  if (memory.tables.size() < sizeof(TablesHeader)) return damaged("tables", "file is too small");
  const auto& header = *reinterpret_cast<const TablesHeader*>(memory.tables.data());
  if (auto checked = check_header(header); !checked) return std::unexpected(checked.error());
  if (memory.tables.size() != header.tables_bytes || memory.arena.size() != header.arena_bytes ||
      memory.pages.size() != header.pages_bytes) {
    return damaged("files", "sizes are not those of the header");
  }
  auto recipe = decode_recipe(header.recipe, certified_architectures);
  if (!recipe) return std::unexpected(recipe.error());
  const Geometry geometry = decode_geometry(header.geometry);
  if (geometry.layer_count != recipe->fields().layers.count() ||
      geometry.key_row_bytes != recipe->key_row_bytes() ||
      geometry.value_row_bytes != recipe->value_row_bytes()) {
    return damaged("geometry", "is not that of the recipe");
  }
  if (impl_->shards.find({header.owner_uid, recipe->fields().model_id, recipe->fields().layers}) !=
      nullptr) {
    return damaged("files", "a shard of the same owner, model and layers is there already");
  }
  const ShardId id{impl_->next_shard_id++};
  auto shard = std::make_unique<Shard>(id, std::move(*recipe), memory, header.capacities, geometry,
                                       impl_->gate);
  Rebuild(*shard, impl_->gate, impl_->now_ms()).run();
  // Whose mapping is gone is asked later, by tick(): only then can the caller know this id.
  impl_->shards.map().emplace(id, std::move(shard));
  impl_->adopted_ms = impl_->now_ms();
  return id;
}

std::uint64_t Core::provisioned_bytes_of(ShardId id) const {
  const Shard& shard = impl_->shards.at(id);
  // Those that leave are in no account of the shard any more, and may have their memory still.
  return shard.provisioned_bytes() +
         shard.chunks.leaving_count() * shard.tables.geometry().extent_bytes;
}

void Core::forget_shard(ShardId shard) {
  impl_->shards.map().erase(shard);
}

std::vector<ExtentRange> Core::shrink_to_limits(std::size_t extents_max) {
  std::vector<ExtentRange> ranges;
  for (const auto& [id, shard] : impl_->shards.map()) {
    const auto has_too_many = [&, &sessions = shard->sessions] {
      return sessions.live_count() > impl_->limits.session_cap;
    };
    if (has_too_many()) {
      impl_->reclaim.end_oldest_while(has_too_many, std::array{shard.get()}, impl_->now_ms());
    }
  }
  if (impl_->limits.max_bytes_per_owner != 0) {
    for (const std::uint32_t owner : impl_->shards.owners()) {
      impl_->shrink(owner, extents_max, ranges);
    }
  }
  impl_->shrink(std::nullopt, extents_max, ranges);
  impl_->tolerated_excess = std::max<std::int64_t>(impl_->excess(std::nullopt), 0);
  return ranges;
}

std::int64_t Core::Impl::excess(std::optional<std::uint32_t> owner) const {
  const std::int64_t provisioned =
      owner ? shards.provisioned_bytes_of(*owner) : shards.provisioned_bytes();
  return provisioned -
         static_cast<std::int64_t>(owner ? limits.max_bytes_per_owner : limits.max_bytes);
}

void Core::Impl::shrink(std::optional<std::uint32_t> owner, std::size_t extents_max,
                        std::vector<ExtentRange>& ranges) {
  std::vector<Shard*> concerned;
  for (const auto& [id, shard] : shards.map()) {
    if (!owner || shard->key.owner_uid == *owner) concerned.push_back(shard.get());
  }
  const auto is_too_much = [&] {
    std::int64_t idle = 0;
    for (const Shard* shard : concerned) {
      idle += static_cast<std::int64_t>(shard->chunks.idle_extents().size() *
                                        shard->tables.geometry().extent_bytes);
    }
    return excess(owner) > idle;
  };
  while (is_too_much() && reclaim.end_oldest_while(is_too_much, concerned, now_ms())) {
  }
  for (Shard* shard : concerned) {
    ChunkPool& chunks = shard->chunks;
    while (excess(owner) > 0 && !chunks.idle_extents().empty() && ranges.size() < extents_max) {
      const ExtentIndex extent{*chunks.idle_extents().rbegin()};
      chunks.begin_departure(extent);
      chunks.end_departure(extent, true);
      ranges.push_back(range_of(*shard, extent, 1));
    }
  }
}

void Core::set_left_over_bytes(std::uint64_t bytes) {
  constexpr std::uint64_t kNoOrder = std::numeric_limits<std::uint64_t>::max();
  impl_->shards.let_go(kNoOrder);
  if (bytes != 0) impl_->shards.hold_back(kNoOrder, {static_cast<std::int64_t>(bytes), {}});
}

std::vector<ExtentRange> Core::unaccounted_extents(ShardId shard_id) const {
  const Shard& shard = impl_->shards.at(shard_id);
  const Geometry& g = shard.tables.geometry();
  std::vector<ExtentRange> ranges;
  bool follows = false;  // the extent before is one of them
  const std::uint32_t known = shard.chunks.known_extents();
  for (std::uint32_t i = 0; i < known; ++i) {
    const bool is_absent = shard.chunks.state(ExtentIndex{i}) == ChunkPool::ExtentState::absent;
    if (is_absent && follows) {
      ranges.back().size_bytes += g.extent_bytes;
    } else if (is_absent) {
      ranges.push_back(range_of(shard, ExtentIndex{i}, 1));
    }
    follows = is_absent;
  }
  if (known < g.extent_count) {
    ranges.push_back(range_of(shard, ExtentIndex{known}, g.extent_count - known));
  }
  return ranges;
}

std::vector<ShardId> Core::take_dropped_shards() {
  return std::exchange(impl_->dropped, {});
}

const Recipe& Core::recipe_of(ShardId shard) const {
  return impl_->shards.at(shard).recipe;
}

FileLayout Core::layout_of(ShardId id) const {
  const Shard& shard = impl_->shards.at(id);
  return FileLayout::of(shard.tables.capacities(), shard.tables.geometry());
}

std::uint64_t Core::boot_token_of(ShardId shard) const {
  return impl_->shards.at(shard).tables.header().boot_token;
}

}  // namespace hotkv::core
