// A daemon that dies between two operations, and the one after it.

#include <gtest/gtest.h>

#include <algorithm>

#include "tests/model/core_model.hpp"

namespace hotkv::test {
namespace {

struct Killed {};

}  // namespace

void Model::restart() {
  ++restarts_;
  copies_before_ = copies();
  for (Shard& shard : shards_) {
    for (auto& [name, session] : shard.sessions) {
      if (session.live && session.live->holder && below(2) == 0) {
        write_without_a_daemon(shard, name);
      }
    }
  }
  // Its helper thread may have carried out a part of what was ordered.
  orders_.abandon([&] { return below(2) == 0; });
  waiting_.clear();
  if (below(2) == 0) kill_a_rebuild();
  const auto ids_before = h_.files;
  h_.restart();
  ASSERT_EQ(h_.files, ids_before);
  h_.now_ms += core::kReturnGraceMs;  // nobody comes back, and nobody is waited for
  for (Shard& shard : shards_) strand(shard);
  note("restart: done");
}

// Granted tokens can be written and published while nobody serves.
void Model::write_without_a_daemon(Shard& shard, const std::string& name) {
  Context& context = *shard.sessions[name].live;
  const auto writer_of = [&](std::uint32_t number) -> CoreClient& {
    if (number < kStrandedFirst) return *shard.clients[number];
    return *std::ranges::find(shard.stranded, number, &Stranded::number)->client;
  };
  const auto known = h_.core->contexts();
  const auto info = std::ranges::find_if(known, [&](const core::ContextInfo& each) {
    return each.shard == shard.id && each.session == id(name);
  });
  ASSERT_NE(info, known.end());
  const auto length = static_cast<std::uint32_t>(context.versions.size());
  if (info->writable.value() <= length) return;
  CoreClient& client = writer_of(*context.holder);
  const auto slot = slot_of(shard, name);
  ASSERT_TRUE(slot.has_value());
  const auto writer =
      client.pin_for_writing({*slot, info->generation, Tip::empty(), info->length, info->writable});
  ASSERT_TRUE(writer.has_value());
  const auto version = static_cast<std::uint32_t>(number_);
  if (is_marked(length)) client.write(name, context.epoch, *writer, length, length + 1, version);
  ASSERT_TRUE(client.publish(*writer, length, length + 1));
  context.versions.push_back(version);
  client.unpin(*writer);
  note("restart: a token published without a daemon");
}

void Model::kill_a_rebuild() {
  core::Core killed(
      h_.limits, [this] { return h_.now_ms; }, h_.liveness);
  std::uint32_t left = below(20);
  killed.set_store_probe([&] {
    if (left-- == 0) throw Killed{};
  });
  try {
    for (const auto& [number, memory] : h_.files) {
      (void)killed.adopt_shard(memory->memory(), default_certified_architectures());
    }
  } catch (const Killed&) {
    note("restart: the rebuild killed, too");
  }
}

// Whoever was stranded before is gone by now; the others live on, and come again as new clients.
void Model::strand(Shard& shard) {
  while (!shard.stranded.empty()) end_stranded(shard, 0);
  for (std::uint32_t k = 0; k < kClientsOfAShard; ++k) {
    const std::uint32_t number = next_stranded_++;
    for (auto& [name, session] : shard.sessions) {
      if (session.live && session.live->holder == k) session.live->holder = number;
    }
    shard.stranded.push_back({number, std::move(shard.clients[k])});
    shard.clients[k] = std::make_unique<CoreClient>(h_, shard.id);
  }
  note_pinned();
}

void Model::end_stranded(Shard& shard, std::size_t which) {
  const Stranded& ended = shard.stranded[which];
  for (auto& [name, session] : shard.sessions) {
    if (session.live && session.live->holder == ended.number) session.live->holder.reset();
  }
  std::erase_if(pins_, [&](const Pinned& pinned) { return pinned.client == ended.client.get(); });
  note_pinned();
  h_.liveness.gone.insert(ended.client->client);
  h_.core->tick();
  h_.liveness.gone.erase(ended.client->client);
  shard.stranded.erase(shard.stranded.begin() + static_cast<std::ptrdiff_t>(which));
  note("leave: a client of an earlier daemon died");
}

}  // namespace hotkv::test
