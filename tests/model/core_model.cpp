#include "tests/model/core_model.hpp"

#include <gtest/gtest.h>

#include <algorithm>

namespace hotkv::test {

Model::Model(const Setting& setting, std::uint64_t seed)
    : setting_(setting), random_(seed), h_(setting.limits), orders_(h_) {
  for (std::uint32_t i = 0; i < 3; ++i) {
    Shard& shard = shards_[i];
    shard.id =
        h_.add_shard(small_recipe(setting.layers[i], "m" + std::to_string(i)), i < 2 ? 1000 : 2000);
    for (std::uint32_t k = 0; k < kClientsOfAShard; ++k) attach(shard);
  }
}

void Model::step(std::uint64_t number) {
  number_ = number;
  h_.now_ms += below(40);
  Shard& shard = shards_[below(3)];
  // Mostly a session that lives, and mostly its holder.
  std::string session = "s" + std::to_string(below(kSessions));
  for (int i = 0; i < 3 && !shard.sessions[session].live; ++i) {
    session = "s" + std::to_string(below(kSessions));
  }
  std::uint32_t client = below(kClientsOfAShard);
  if (const auto& live = shard.sessions[session].live;
      live && live->holder && *live->holder < kStrandedFirst && below(4) != 0) {
    client = *live->holder;
  }
  const std::uint32_t dice = below(100);
  if (dice < 14) {
    open(shard, client, session, 0);
  } else if (dice < 16) {
    open(shard, client, session, 1);
  } else if (dice < 17) {
    open(shard, client, session, -1);
  } else if (dice < 44) {
    append(shard, client, session);
  } else if (dice < 54) {
    pin(shard, client, session);
  } else if (dice < 64) {
    unpin();
  } else if (dice < 71) {
    truncate(shard, client, session);
  } else if (dice < 73) {
    release(shard, client, session);
  } else if (dice < 76) {
    close(shard, client, session);
  } else if (dice < 77) {
    leave(shard, client, false);
  } else if (dice < 78) {
    leave(shard, client, true);
  } else if (dice < 90) {
    run_order();
  } else if (dice < 93) {
    tick();
  } else if (dice < 95) {
    look();
  } else if (dice < 99) {
    explain(shard, client, session);
  } else if (below(2) == 0) {
    restart();
  } else if (!shard.stranded.empty()) {
    end_stranded(shard, below(shard.stranded.size()));
  }
  check();
}

void Model::note(const char* operation, const Refusal& refusal) {
  const std::string_view why =
      refusal.is_miss() ? to_string(refusal.miss().reason) : to_string(refusal.error().code);
  note(std::string(operation) + ": " + std::string(why));
}

void Model::open(Shard& shard, std::uint32_t client, const std::string& name, int raise) {
  Session& session = shard.sessions[name];
  const std::uint64_t known = session.epoch.value_or(5);
  const std::uint64_t epoch = known + static_cast<std::uint64_t>(raise);
  const auto before = generation_of(shard, name);
  const auto outcome = shard.clients[client]->open(name, epoch);
  if (!outcome) note("open", outcome.error());
  if (session.epoch && epoch < *session.epoch) {
    ASSERT_FALSE(outcome.has_value());
    ASSERT_TRUE(outcome.error().is(ErrorCode::stale_epoch));
    return;
  }
  auto& live = session.live;
  const bool same = live && live->epoch == epoch;
  if (same && live->holder && *live->holder < kStrandedFirst && *live->holder != client) {
    // These are connected: who hangs up is replaced and its leases are free.
    ASSERT_FALSE(outcome.has_value());
    ASSERT_TRUE(outcome.error().is(ErrorCode::session_busy)) << outcome.error().message();
    return;
  }
  if (!outcome) {
    ASSERT_TRUE(outcome.error().is(ErrorCode::too_many_sessions)) << outcome.error().message();
    ASSERT_FALSE(live.has_value());
    return;
  }
  if (same) {
    const bool taken_over = live->holder && *live->holder != client;
    note(taken_over ? "open: taken over" : "open: leased again");
    if (taken_over) {
      ASSERT_TRUE(before && outcome->generation > *before);
    }
    live->holder = client;
    ASSERT_EQ(outcome->length.value(), live->versions.size());
    return;
  }
  note(live ? "open: superseded" : "open: made");
  live = Context{epoch, {}, client};
  session.epoch = epoch;
  session.ended.reset();
  ASSERT_EQ(outcome->length, TokenCount{0});
}

void Model::append(Shard& shard, std::uint32_t client, const std::string& name) {
  Session& session = shard.sessions[name];
  // Mostly as its holder: what is only ever refused shows little.
  const bool holds = session.live && session.live->holder == client;
  if (!holds && below(4) != 0) {
    open(shard, client, name, 0);
    check();
  }
  if (!session.epoch) return;
  const std::uint64_t epoch = *session.epoch;
  const std::uint32_t length =
      session.live ? static_cast<std::uint32_t>(session.live->versions.size()) : 0;
  const Append asked{&shard, client, name, epoch, 1 + below(6 * setting_.step_tokens)};
  auto answer = h_.core->append(shard.clients[client]->client, id(name), Epoch{epoch},
                                generation_of(shard, name).value_or(Generation{0}),
                                TokenCount{length + asked.tokens});
  h_.core->end_message(shard.id);
  if (const auto* refusal = std::get_if<Refusal>(&answer)) {
    note("append", *refusal);
    check_refusal(session, client, *refusal);
    return;
  }
  ASSERT_TRUE(session.live && session.live->holder == client);
  note_endings();
  ASSERT_TRUE(session.live.has_value()) << "evicted for its own append";
  if (const auto* waiting = std::get_if<core::Waiting>(&answer)) {
    note("append: waits");
    waiting_.emplace(waiting->ticket, asked);
    ++waits_;
  } else {
    publish(asked, std::get<core::Position>(answer));
  }
}

void Model::check_refusal(const Session& session, std::uint32_t client, const Refusal& refusal) {
  if (!session.live) {
    ASSERT_TRUE(session.ended && refusal.is(session.ended->reason)) << refusal.message();
  } else if (session.live->holder != client) {
    ASSERT_TRUE(refusal.is(ErrorCode::lease_lost)) << refusal.message();
  } else {
    ASSERT_TRUE(refusal.is(ErrorCode::budget_exceeded) || refusal.is(ErrorCode::too_many_waiting))
        << refusal.message();
  }
}

void Model::publish(const Append& granted, const core::Position& position) {
  Context& context = *granted.shard->sessions[granted.session].live;
  const auto from = static_cast<std::uint32_t>(context.versions.size());
  // Behind, where an append that waited for the same order has published meanwhile.
  ASSERT_LE(position.length.value(), from);
  ASSERT_GE(position.writable.value(), from);
  CoreClient& client = *granted.shard->clients[granted.client];
  const auto writer = client.pin_for_writing(position);
  ASSERT_TRUE(writer.has_value());
  const std::uint32_t to = std::min(from + granted.tokens, position.writable.value());
  const auto version = static_cast<std::uint32_t>(number_);
  for (std::uint32_t each = from; each < to; ++each) {
    if (!is_marked(each)) continue;
    client.write(granted.session, granted.epoch, *writer, each, each + 1, version);
  }
  const std::uint32_t published = below(4) == 0 ? from + below(to - from + 1) : to;
  ASSERT_TRUE(client.publish(*writer, from, published));
  note(published == from ? "publish: no token" : "publish: tokens");
  context.versions.resize(published, version);
  if (below(3) == 0) {  // the writer goes on holding its pin, as an asynchronous copy would
    note("publish: the writer's pin is held");
    hold({granted.shard, &client, *writer, granted.session, granted.epoch, context.versions});
  } else {
    client.unpin(*writer);
  }
}

void Model::pin(Shard& shard, std::uint32_t client, const std::string& name) {
  if (pins_.size() > 12) return;  // with more, everything is pinned most of the time
  const Session& session = shard.sessions[name];
  const std::uint64_t epoch = session.epoch.value_or(5);
  const std::uint32_t length =
      session.live ? static_cast<std::uint32_t>(session.live->versions.size()) : 3;
  const auto view = shard.clients[client]->resolve(name, epoch, length);
  if (!session.live) {
    ASSERT_FALSE(view.has_value());
    note("resolve", view.error());
    check_miss(session, view.error());
    return;
  }
  ASSERT_TRUE(view.has_value()) << view.error().message();
  ++hits_;
  note("resolve: hit");
  hold({&shard, shard.clients[client].get(), *view, name, epoch, session.live->versions});
}

void Model::check_miss(const Session& session, const Refusal& refusal) {
  ++misses_;
  ASSERT_TRUE(refusal.is_miss()) << refusal.message();
  if (!session.ended) {
    ASSERT_TRUE(refusal.is(MissReason::unknown_session)) << refusal.message();
    return;
  }
  ASSERT_TRUE(refusal.is(session.ended->reason)) << refusal.message();
  ASSERT_EQ(refusal.miss().known_length, TokenCount{session.ended->length});
  ASSERT_EQ(refusal.miss().known_epoch, Epoch{*session.epoch});
}

void Model::explain(Shard& shard, std::uint32_t client, const std::string& name) {
  const Session& session = shard.sessions[name];
  if (!session.epoch) return;
  const auto ask = [&](std::uint64_t epoch, std::size_t expected) {
    return h_.core->explain(shard.clients[client]->client, id(name), Epoch{epoch},
                            h_.core->recipe_of(shard.id).fingerprint(),
                            TokenCount{static_cast<std::uint32_t>(expected)}, LengthMatch::exact);
  };
  ASSERT_TRUE(ask(*session.epoch - 1, 0).error().is(MissReason::superseded_epoch));
  ASSERT_TRUE(ask(*session.epoch + 1, 0).error().is(MissReason::unknown_session));
  if (!session.live) return;
  const std::size_t length = session.live->versions.size();
  ASSERT_TRUE(ask(*session.epoch, length).has_value());
  ASSERT_TRUE(ask(*session.epoch, length + 1).error().is(MissReason::seq_len_mismatch));
}

void Model::unpin() {
  if (pins_.empty()) return;
  const std::uint32_t which = below(pins_.size());
  const Pinned& pinned = pins_[which];
  const core::ShardId shard = pinned.shard->id;
  pinned.client->unpin(pinned.view);
  note("unpin: done");
  pins_.erase(pins_.begin() + which);
  if (below(2) == 0) h_.core->end_message(shard);
}

void Model::truncate(Shard& shard, std::uint32_t client, const std::string& name) {
  Session& session = shard.sessions[name];
  if (!session.live) return;
  const std::uint32_t to = below(session.live->versions.size() + 1);
  const auto outcome = shard.clients[client]->truncate(name, session.live->epoch, to);
  if (session.live->holder != client) {
    ASSERT_TRUE(outcome.error().is(ErrorCode::lease_lost));
    note("truncate", outcome.error());
    return;
  }
  note(to == session.live->versions.size() ? "truncate: to its length" : "truncate: done");
  ASSERT_TRUE(outcome.has_value()) << outcome.error().message();
  ASSERT_EQ(outcome->length, TokenCount{to});
  session.live->versions.resize(to);
}

void Model::release(Shard& shard, std::uint32_t client, const std::string& name) {
  Session& session = shard.sessions[name];
  if (!session.live) return;
  ASSERT_TRUE(shard.clients[client]->release(name, session.live->epoch));
  note("release: done");
  end(session, MissReason::released);
}

void Model::close(Shard& shard, std::uint32_t client, const std::string& name) {
  Session& session = shard.sessions[name];
  if (!session.live) return;
  const bool holds = session.live->holder == client;
  ASSERT_EQ(shard.clients[client]->close(name, session.live->epoch).has_value(), holds);
  note(holds ? "close: done" : "close: not the holder");
  if (holds) session.live->holder.reset();
}

void Model::leave(Shard& shard, std::uint32_t client, bool dies) {
  CoreClient& leaving = *shard.clients[client];
  std::erase_if(waiting_, [&](const auto& each) {
    return each.second.shard == &shard && each.second.client == client;
  });
  note(dies ? "leave: died" : "leave: hung up, then died");
  if (dies) {
    leaving.die();
  } else {
    leaving.hang_up();
    const std::uint32_t heir = (client + 1) % kClientsOfAShard;
    for (auto& [name, session] : shard.sessions) {
      if (!session.live || session.live->holder != client || below(2) == 0) continue;
      const auto before = generation_of(shard, name);
      const auto taken = shard.clients[heir]->open(name, session.live->epoch);
      ASSERT_TRUE(taken.has_value()) << taken.error().message();
      ASSERT_TRUE(before && taken->generation > *before);
      ASSERT_EQ(taken->length.value(), session.live->versions.size());
      session.live->holder = heir;
      note("leave: taken over from it meanwhile");
    }
    check();
  }
  for (auto& [name, session] : shard.sessions) {
    if (session.live && session.live->holder == client) session.live->holder.reset();
  }
  std::erase_if(pins_, [&](const Pinned& pinned) { return pinned.client == &leaving; });
  note_pinned();
  if (!dies) {
    h_.liveness.gone.insert(leaving.client);
    h_.core->tick();
  }
  h_.liveness.gone.erase(leaving.client);
  shard.clients[client] = std::make_unique<CoreClient>(h_, shard.id);
}

void Model::run_order() {
  auto ending = OrderRunner::Ending::success;
  if (below(6) == 0) {
    ending = below(2) == 0 ? OrderRunner::Ending::failed_before_punching
                           : OrderRunner::Ending::failed_after_punching;
  }
  if (orders_.run_one(ending)) {
    note(ending == OrderRunner::Ending::success ? "memory order: done" : "memory order: failed");
  }
  for (auto each = waiting_.begin(); each != waiting_.end();) {
    auto answer = orders_.answer(each->first);
    if (!answer) {
      ++each;
      continue;
    }
    const Append granted = each->second;
    each = waiting_.erase(each);
    const Session& session = granted.shard->sessions[granted.session];
    const bool lives = session.live && session.live->epoch == granted.epoch;
    if (!answer->has_value()) note("append that waited", answer->error());
    if (answer->has_value()) {
      note("append that waited: granted");
      ASSERT_TRUE(lives && session.live->holder == granted.client);
      publish(granted, **answer);
    } else if (answer->error().is_miss()) {
      ASSERT_FALSE(lives) << answer->error().message();
    } else {
      ASSERT_TRUE(answer->error().is(ErrorCode::memory_unavailable) ||
                  answer->error().is(ErrorCode::lease_lost))
          << answer->error().message();
    }
  }
}

void Model::tick() {
  if (below(30) == 0) h_.now_ms += setting_.limits.ttl_ms / 2 + below(30'000);
  h_.core->tick();
}

void Model::look() {
  std::uint64_t stores = 0;
  h_.core->set_store_probe([&] { ++stores; });
  (void)h_.core->status();
  (void)h_.core->contexts();
  (void)h_.core->why(id("s1"));
  h_.core->set_store_probe({});
  ASSERT_EQ(stores, 0u);
}

void Model::end(Session& session, MissReason reason) {
  session.ended = Ended{reason, static_cast<std::uint32_t>(session.live->versions.size())};
  session.live.reset();
  note("ended: " + std::string(to_string(reason)));
}

}  // namespace hotkv::test
