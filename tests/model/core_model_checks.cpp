// What is looked at after each operation of the model.

#include "tests/model/core_model.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdio>
#include <span>

#include "shared/session_hash.hpp"

namespace hotkv::test {

void Model::finish() {
  orders_.run_all();
  for (Shard& shard : shards_) {
    while (!shard.stranded.empty()) end_stranded(shard, 0);
    for (std::uint32_t k = 0; k < kClientsOfAShard; ++k) leave(shard, k, true);
  }
  for (Shard& shard : shards_) {
    for (const auto& context : h_.core->contexts()) {
      if (context.shard != shard.id) continue;
      (void)shard.clients[0]->release(context.session.bytes(), context.epoch.value());
    }
  }
  EXPECT_EQ(h_.core->verify(), std::nullopt);
  const auto account = h_.core->status().account;
  EXPECT_EQ(account.used + account.kept + account.in_transit, 0u);
  EXPECT_EQ(account.free, account.provisioned);
  EXPECT_LE(orders_.held_bytes_max(), setting_.limits.max_bytes);
  EXPECT_EQ(orders_.contradictions(), 0u);
  std::printf(
      "%s: hits %llu, misses %llu, evicted %llu, expired %llu, copies %llu, waits %llu, restarts "
      "%llu\n",
      setting_.name, count(hits_), count(misses_), count(evicted_), count(expired_),
      count(copies()), count(waits_), count(restarts_));
  for (const auto& [outcome, times] : tally_) {
    std::printf("%10llu  %s\n", count(times), outcome.c_str());
  }
}

bool Model::met_everything() const {
  return hits_ > 0 && evicted_ > 0 && copies() > 0 && waits_ > 0 && restarts_ > 0;
}

std::uint64_t Model::copies() const {
  std::uint64_t sum = copies_before_;
  for (const auto& shard : h_.core->status().shards) sum += shard.counters.tail_copies;
  return sum;
}

bool Model::is_marked(std::uint32_t position) const {
  const std::uint32_t chunk = setting_.limits.chunk_tokens;
  return chunk <= 64 || position % 64 == 0 || position % chunk == chunk - 1;
}

std::vector<std::byte> Model::rows(const Pinned& pinned) const {
  const auto tables = h_.tables(pinned.view.shard);
  const Geometry& g = tables.geometry();
  std::vector<std::byte> bytes;
  const auto add = [&](std::span<const std::byte> row) {
    bytes.insert(bytes.end(), row.begin(), row.end());
  };
  for (std::uint32_t position = 0; position < pinned.versions.size(); ++position) {
    if (!is_marked(position)) continue;
    const auto chunk = tables.chunk(pinned.view.chunks.at(position / g.chunk_tokens));
    const std::uint64_t row = position % g.chunk_tokens;
    for (std::uint32_t layer = 0; layer < g.layer_count; ++layer) {
      add(chunk.subspan(g.keys_offset(layer).value() + row * g.key_row_bytes, g.key_row_bytes));
      add(chunk.subspan(g.values_offset(layer).value() + row * g.value_row_bytes,
                        g.value_row_bytes));
    }
  }
  return bytes;
}

std::vector<std::byte> Model::pattern(const Pinned& pinned) const {
  const Geometry& g = h_.files.at(pinned.view.shard)->geometry;
  std::vector<std::byte> bytes;
  for (std::uint32_t position = 0; position < pinned.versions.size(); ++position) {
    if (!is_marked(position)) continue;
    for (std::uint32_t layer = 0; layer < g.layer_count; ++layer) {
      for (const Half half : {Half::keys, Half::values}) {
        const std::size_t begin = bytes.size();
        bytes.resize(begin + (half == Half::keys ? g.key_row_bytes : g.value_row_bytes));
        fill_row(std::span(bytes).subspan(begin),
                 {pinned.session, pinned.epoch, position, layer, half, pinned.versions[position]});
      }
    }
  }
  return bytes;
}

void Model::hold(Pinned pinned) {
  pinned.bytes = rows(pinned);
  ASSERT_TRUE(pinned.bytes == pattern(pinned)) << pinned.session;
  pins_.push_back(std::move(pinned));
}

void Model::note_pinned() {
  pinned_before_.clear();
  for (const Shard& shard : shards_) {
    for (const auto& [name, session] : shard.sessions) {
      if (session.live && is_pinned(shard, name, *session.live)) {
        pinned_before_.insert({shard.id, name});
      }
    }
  }
}

bool Model::is_pinned(const Shard& shard, const std::string& session,
                      const Context& context) const {
  // A name that was released and opened again can stand in another slot, whose generations are its
  // own.
  const auto slot = slot_of(shard, session);
  const auto generation = generation_of(shard, session);
  return std::ranges::any_of(pins_, [&](const Pinned& pinned) {
    return pinned.shard == &shard && pinned.session == session && pinned.epoch == context.epoch &&
           slot == pinned.view.slot && generation == pinned.view.generation;
  });
}

std::optional<SlotIndex> Model::slot_of(const Shard& shard, const std::string& session) const {
  const auto tables = h_.tables(shard.id);
  for (std::uint32_t i = 0; i < tables.capacities().slot_count; ++i) {
    const SlotRecord& slot = tables.slot(SlotIndex{i});
    if (!load_head(slot.head).tip.is_free() && slot_has_session(slot, id(session))) {
      return SlotIndex{i};
    }
  }
  return std::nullopt;
}

std::optional<Generation> Model::generation_of(const Shard& shard,
                                               const std::string& session) const {
  const auto slot = slot_of(shard, session);
  if (!slot) return std::nullopt;
  return load_head(h_.tables(shard.id).slot(*slot).head).generation;
}

void Model::note_endings() {
  std::set<std::pair<core::ShardId, std::string>> there;
  for (const auto& context : h_.core->contexts()) {
    there.insert({context.shard, std::string(context.session.bytes())});
  }
  for (Shard& shard : shards_) {
    for (auto& [name, session] : shard.sessions) {
      if (!session.live || there.contains({shard.id, name})) continue;
      const auto why = h_.core->why(id(name));
      const auto told = std::ranges::find(why, shard.id, &core::Explanation::shard);
      ASSERT_TRUE(told != why.end() && told->last.has_value());
      const MissReason reason = told->last->reason;
      ASSERT_TRUE(reason == MissReason::evicted_lru || reason == MissReason::evicted_ttl);
      ++(reason == MissReason::evicted_lru ? evicted_ : expired_);
      ASSERT_FALSE(pinned_before_.contains({shard.id, name})) << name << " was pinned";
      end(session, reason);
    }
  }
}

void Model::check() {
  note_endings();
  ASSERT_EQ(h_.core->verify(), std::nullopt);
  const auto status = h_.core->status();
  const core::Account& account = status.account;
  ASSERT_LE(account.provisioned, setting_.limits.max_bytes);
  ASSERT_EQ(account.used + account.kept + account.free + account.in_transit, account.provisioned);
  ASSERT_LE(orders_.held_bytes(), setting_.limits.max_bytes);
  std::map<std::uint32_t, std::uint64_t> by_owner;
  for (const auto& shard : status.shards) {
    by_owner[shard.key.owner_uid] += shard.account.provisioned;
    ASSERT_LE(shard.contexts, setting_.limits.session_cap);
  }
  for (const auto& [owner, bytes] : by_owner) {
    ASSERT_LE(bytes, setting_.limits.max_bytes_per_owner) << "uid " << owner;
  }
  std::size_t live = 0;
  for (const auto& context : h_.core->contexts()) {
    Shard& shard = *std::ranges::find(shards_, context.shard, &Shard::id);
    const Session& session = shard.sessions[std::string(context.session.bytes())];
    ASSERT_TRUE(session.live.has_value());
    ASSERT_EQ(context.epoch, Epoch{session.live->epoch});
    ASSERT_EQ(context.length.value(), session.live->versions.size());
    ++live;
  }
  std::size_t expected = 0;
  for (const Shard& shard : shards_) {
    for (const auto& [name, session] : shard.sessions) expected += session.live ? 1 : 0;
  }
  ASSERT_EQ(live, expected);
  for (const Pinned& pinned : pins_) {
    ASSERT_TRUE(rows(pinned) == pinned.bytes) << pinned.session << " epoch " << pinned.epoch << ", "
                                              << pinned.versions.size() << " tokens";
  }
  note_pinned();
}

}  // namespace hotkv::test
