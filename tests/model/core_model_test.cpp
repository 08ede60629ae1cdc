// Random operations on the core and on a naive reference: a map from session to the list of its
// tokens. After each operation: verify(), lengths, misses, and every byte of every pinned view.
//
//   HOTKV_SEED=…              the seed (printed); HOTKV_MODEL_OPERATIONS=… how many, all geometries
//
// It can fail. Each of these, alone, makes it fail within the first thousands of operations:
//   shard.cpp, end_generation: leave out kept_heads.keep(slot, old)      a pinned view changes
//   shard.cpp, needs_tail_copy: return false                             a pinned view changes
//   shard.cpp, end_generation: leave out the ref of the next tip         verify: owners counted wrong
//   reclaim.cpp, choose_victims: leave out the look at the pins          a pinned context is evicted
//   core.cpp, expire: leave out the touch of a pinned context's age      a pinned context expires

#include <gtest/gtest.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <map>
#include <memory>
#include <optional>
#include <random>
#include <set>
#include <span>
#include <string>
#include <vector>

#include "shared/session_hash.hpp"
#include "tests/support/core_harness.hpp"
#include "tests/support/order_runner.hpp"

namespace hotkv::test {
namespace {

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
constexpr std::uint64_t kOperations = 12'000;
#else
constexpr std::uint64_t kOperations = 60'000;
#endif
constexpr std::uint32_t kSessions = 7;  // names; more than the session cap of 5
constexpr std::uint32_t kClientsOfAShard = 3;

std::uint64_t from_environment(const char* name, std::uint64_t otherwise) {
  const char* text = std::getenv(name);
  return text == nullptr ? otherwise : std::strtoull(text, nullptr, 10);
}

// What one run is made of: three shards, the first two of one owner.
struct Setting {
  const char* name;
  core::Limits limits;
  LayerRange layers[3];
  std::uint32_t step_tokens;  // lengths are multiples of about this, so that chunks are crossed
  bool fails_before_punching;
};

core::Limits tiny(std::uint64_t max_bytes) {
  auto limits = CoreHarness::small_limits();
  limits.max_bytes = max_bytes;
  limits.max_bytes_per_owner = max_bytes * 3 / 4;
  limits.session_cap = 5;
  limits.tombstones = 1000;  // nothing is forgotten: the reference remembers everything too
  limits.clients_per_shard = kClientsOfAShard;
  limits.ttl_ms = 20'000;
  limits.waiting_grants_max = 3;
  return limits;
}

Setting one_chunk_an_extent() {
  return {"one chunk an extent", tiny(24 * 4096), {{0, 1}, {2, 3}, {0, 1}}, 7, true};
}

// Shards whose extents differ. Orders do not fail before their punches here: see
// GrantsWithAShortQueue.DISABLED_AnOrderThatGivesMoreThanItTakesAndFailsKeepsTheBudget.
Setting mixed_strides() {
  return {"mixed strides", tiny(28 * 4096), {{0, 1}, {0, 5}, {0, 9}}, 7, false};
}

Setting four_chunks_an_extent() {
  auto limits = tiny(6 * kHugePageBytes);
  limits.huge_pages = true;
  limits.chunk_tokens = 4096;  // of 128 bytes
  return {"four chunks an extent", limits, {{0, 1}, {2, 3}, {0, 1}}, 1900, true};
}

class Model {
 public:
  Model(const Setting& setting, std::uint64_t seed)
      : setting_(setting), random_(seed), h_(setting.limits), orders_(h_) {
    for (std::uint32_t i = 0; i < 3; ++i) {
      Shard& shard = shards_[i];
      shard.id = h_.add_shard(small_recipe(setting.layers[i], "m" + std::to_string(i)),
                              i < 2 ? 1000 : 2000);
      for (std::uint32_t k = 0; k < kClientsOfAShard; ++k) attach(shard);
    }
  }

  void step(std::uint64_t number) {
    number_ = number;
    h_.now_ms += below(40);
    Shard& shard = shards_[below(3)];
    // Mostly a session that lives, and mostly its holder.
    std::string session = "s" + std::to_string(below(kSessions));
    for (int i = 0; i < 3 && !shard.sessions[session].live; ++i) {
      session = "s" + std::to_string(below(kSessions));
    }
    std::uint32_t client = below(kClientsOfAShard);
    if (const auto& live = shard.sessions[session].live; live && live->holder && below(4) != 0) {
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
    } else {
      explain(shard, client, session);
    }
    check();
  }

  // Everybody lets go: all of it can be freed.
  void finish() {
    orders_.run_all();
    for (Shard& shard : shards_) {
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
    std::printf("%-22s hits %llu, misses %llu, evicted %llu, expired %llu, copies %llu, waits %llu\n",
                setting_.name, count(hits_), count(misses_), count(evicted_), count(expired_),
                count(copies()), count(waits_));
    EXPECT_GT(hits_, 0u);
    EXPECT_GT(evicted_, 0u);
    EXPECT_GT(copies(), 0u);
    EXPECT_GT(waits_, 0u);
  }

 private:
  // ---- the reference

  struct Context {
    std::uint64_t epoch = 0;
    std::vector<std::uint32_t> versions;  // of each published token
    std::optional<std::uint32_t> holder;  // number of the client in its shard
  };
  struct Ended {
    MissReason reason;
    std::uint32_t length;
  };
  struct Session {
    std::optional<std::uint64_t> epoch;  // highest ever opened
    std::optional<Context> live;
    std::optional<Ended> ended;  // of that epoch
  };
  struct Shard {
    core::ShardId id;
    std::vector<std::unique_ptr<CoreClient>> clients;
    std::map<std::string, Session> sessions;
  };
  struct Pinned {
    Shard* shard;
    std::uint32_t client;
    CoreView view;
    std::string session;
    std::uint64_t epoch;
    std::vector<std::uint32_t> versions;
    std::vector<std::byte> bytes = {};  // when it was pinned
  };
  struct Append {
    Shard* shard;
    std::uint32_t client;
    std::string session;
    std::uint64_t epoch;
    std::uint32_t tokens;
  };

  static unsigned long long count(std::uint64_t n) { return n; }
  std::uint32_t below(std::size_t n) { return static_cast<std::uint32_t>(random_() % n); }
  std::uint64_t copies() const {
    std::uint64_t sum = 0;
    for (const auto& shard : h_.core->status().shards) sum += shard.counters.tail_copies;
    return sum;
  }

  // Only these positions carry the pattern and are looked at, where chunks are large: their edges,
  // and every 64th.
  bool is_marked(std::uint32_t position) const {
    const std::uint32_t chunk = setting_.limits.chunk_tokens;
    return chunk <= 64 || position % 64 == 0 || position % chunk == chunk - 1;
  }
  // The marked rows of a pinned view, one after the other.
  std::vector<std::byte> rows(const Pinned& pinned) const {
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
  // What those rows have to be.
  std::vector<std::byte> pattern(const Pinned& pinned) const {
    const Geometry& g = h_.files.at(pinned.view.shard)->geometry;
    std::vector<std::byte> bytes;
    for (std::uint32_t position = 0; position < pinned.versions.size(); ++position) {
      if (!is_marked(position)) continue;
      for (std::uint32_t layer = 0; layer < g.layer_count; ++layer) {
        for (const Half half : {Half::keys, Half::values}) {
          const std::size_t begin = bytes.size();
          bytes.resize(begin + (half == Half::keys ? g.key_row_bytes : g.value_row_bytes));
          fill_row(std::span(bytes).subspan(begin), {pinned.session, pinned.epoch, position, layer,
                                                     half, pinned.versions[position]});
        }
      }
    }
    return bytes;
  }
  // From now on the view's bytes are looked at after each operation.
  void hold(Pinned pinned) {
    pinned.bytes = rows(pinned);
    ASSERT_TRUE(pinned.bytes == pattern(pinned)) << pinned.session;
    pins_.push_back(std::move(pinned));
  }
  void note_pinned() {
    pinned_before_.clear();
    for (const Shard& shard : shards_) {
      for (const auto& [name, session] : shard.sessions) {
        if (session.live && is_pinned(shard, name, *session.live)) {
          pinned_before_.insert({shard.id, name});
        }
      }
    }
  }
  bool is_pinned(const Shard& shard, const std::string& session, const Context& context) const {
    const auto generation = generation_of(shard, session);
    return std::ranges::any_of(pins_, [&](const Pinned& pinned) {
      return pinned.shard == &shard && pinned.session == session &&
             pinned.epoch == context.epoch && generation == pinned.view.generation;
    });
  }
  std::optional<Generation> generation_of(const Shard& shard, const std::string& session) const {
    const auto tables = h_.tables(shard.id);
    for (std::uint32_t i = 0; i < tables.capacities().slot_count; ++i) {
      const SlotRecord& slot = tables.slot(SlotIndex{i});
      const HeadWord head = load_head(slot.head);
      if (!head.tip.is_free() && slot_has_session(slot, id(session))) return head.generation;
    }
    return std::nullopt;
  }

  // ---- operations; each says what the core may answer

  void attach(Shard& shard) {
    shard.clients.push_back(std::make_unique<CoreClient>(h_, shard.id));
  }

  void open(Shard& shard, std::uint32_t client, const std::string& name, int raise) {
    Session& session = shard.sessions[name];
    const std::uint64_t known = session.epoch.value_or(5);
    const std::uint64_t epoch = known + static_cast<std::uint64_t>(raise);
    const auto outcome = shard.clients[client]->open(name, epoch);
    if (session.epoch && epoch < *session.epoch) {
      ASSERT_FALSE(outcome.has_value());
      ASSERT_TRUE(outcome.error().is(ErrorCode::stale_epoch));
      return;
    }
    auto& live = session.live;
    const bool same = live && live->epoch == epoch;
    if (same && live->holder && *live->holder != client) {
      // Every client is connected here: who hangs up is replaced and its leases are free.
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
      live->holder = client;
      ASSERT_EQ(outcome->length.value(), live->versions.size());
      return;
    }
    live = Context{epoch, {}, client};
    session.epoch = epoch;
    session.ended.reset();
    ASSERT_EQ(outcome->length, TokenCount{0});
  }

  void append(Shard& shard, std::uint32_t client, const std::string& name) {
    Session& session = shard.sessions[name];
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
      check_refusal(session, client, *refusal);
      return;
    }
    ASSERT_TRUE(session.live && session.live->holder == client);
    note_endings();
    ASSERT_TRUE(session.live.has_value()) << "evicted for its own append";
    if (const auto* waiting = std::get_if<core::Waiting>(&answer)) {
      waiting_.emplace(waiting->ticket, asked);
      ++waits_;
    } else {
      publish(asked, std::get<core::Position>(answer));
    }
  }

  void check_refusal(const Session& session, std::uint32_t client, const Refusal& refusal) {
    if (!session.live) {
      ASSERT_TRUE(session.ended && refusal.is(session.ended->reason)) << refusal.message();
    } else if (session.live->holder != client) {
      ASSERT_TRUE(refusal.is(ErrorCode::lease_lost)) << refusal.message();
    } else {
      ASSERT_TRUE(refusal.is(ErrorCode::budget_exceeded) ||
                  refusal.is(ErrorCode::too_many_waiting))
          << refusal.message();
    }
  }

  // Writes what was granted, and publishes all of it or a part.
  void publish(const Append& granted, const core::Position& position) {
    Context& context = *granted.shard->sessions[granted.session].live;
    const auto from = static_cast<std::uint32_t>(context.versions.size());
    ASSERT_EQ(position.length, TokenCount{from});
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
    context.versions.resize(published, version);
    if (below(3) == 0) {  // the writer goes on holding its pin, as an asynchronous copy would
      hold({granted.shard, granted.client, *writer, granted.session, granted.epoch,
            context.versions});
    } else {
      client.unpin(*writer);
    }
  }

  void pin(Shard& shard, std::uint32_t client, const std::string& name) {
    if (pins_.size() > 12) return;  // with more, everything is pinned most of the time
    const Session& session = shard.sessions[name];
    const std::uint64_t epoch = session.epoch.value_or(5);
    const std::uint32_t length =
        session.live ? static_cast<std::uint32_t>(session.live->versions.size()) : 3;
    const auto view = shard.clients[client]->resolve(name, epoch, length);
    if (!session.live) {
      ASSERT_FALSE(view.has_value());
      check_miss(session, view.error());
      return;
    }
    ASSERT_TRUE(view.has_value()) << view.error().message();
    ++hits_;
    hold({&shard, client, *view, name, epoch, session.live->versions});
  }

  void check_miss(const Session& session, const Refusal& refusal) {
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

  void explain(Shard& shard, std::uint32_t client, const std::string& name) {
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

  void unpin() {
    if (pins_.empty()) return;
    const std::uint32_t which = below(pins_.size());
    const Pinned& pinned = pins_[which];
    const core::ShardId shard = pinned.shard->id;
    pinned.shard->clients[pinned.client]->unpin(pinned.view);
    pins_.erase(pins_.begin() + which);
    if (below(2) == 0) h_.core->end_message(shard);
  }

  void truncate(Shard& shard, std::uint32_t client, const std::string& name) {
    Session& session = shard.sessions[name];
    if (!session.live) return;
    const std::uint32_t to = below(session.live->versions.size() + 1);
    const auto outcome = shard.clients[client]->truncate(name, session.live->epoch, to);
    if (session.live->holder != client) {
      ASSERT_TRUE(outcome.error().is(ErrorCode::lease_lost));
      return;
    }
    ASSERT_TRUE(outcome.has_value()) << outcome.error().message();
    ASSERT_EQ(outcome->length, TokenCount{to});
    session.live->versions.resize(to);
  }

  void release(Shard& shard, std::uint32_t client, const std::string& name) {
    Session& session = shard.sessions[name];
    if (!session.live) return;
    ASSERT_TRUE(shard.clients[client]->release(name, session.live->epoch));
    end(session, MissReason::released);
  }

  void close(Shard& shard, std::uint32_t client, const std::string& name) {
    Session& session = shard.sessions[name];
    if (!session.live) return;
    const bool holds = session.live->holder == client;
    ASSERT_EQ(shard.clients[client]->close(name, session.live->epoch).has_value(), holds);
    if (holds) session.live->holder.reset();
  }

  // A client dies, or hangs up first: then others take some of its leases over while it lives, and its
  // pins hold. Another one attaches in its place.
  void leave(Shard& shard, std::uint32_t client, bool dies) {
    CoreClient& leaving = *shard.clients[client];
    std::erase_if(waiting_, [&](const auto& each) {
      return each.second.shard == &shard && each.second.client == client;
    });
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
      }
      check();
    }
    for (auto& [name, session] : shard.sessions) {
      if (session.live && session.live->holder == client) session.live->holder.reset();
    }
    std::erase_if(pins_, [&](const Pinned& pinned) {
      return pinned.shard == &shard && pinned.client == client;
    });
    note_pinned();
    if (!dies) {
      h_.liveness.gone.insert(leaving.client);
      h_.core->tick();
    }
    h_.liveness.gone.erase(leaving.client);
    shard.clients[client] = std::make_unique<CoreClient>(h_, shard.id);
  }

  void run_order() {
    auto ending = OrderRunner::Ending::success;
    if (below(6) == 0) {
      ending = setting_.fails_before_punching && below(2) == 0
                   ? OrderRunner::Ending::failed_before_punching
                   : OrderRunner::Ending::failed_after_punching;
    }
    (void)orders_.run_one(ending);
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
      if (answer->has_value()) {
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

  void tick() {
    if (below(30) == 0) h_.now_ms += setting_.limits.ttl_ms / 2 + below(30'000);
    h_.core->tick();
  }

  void look() {
    std::uint64_t stores = 0;
    h_.core->set_store_probe([&] { ++stores; });
    (void)h_.core->status();
    (void)h_.core->contexts();
    (void)h_.core->why(id("s1"));
    h_.core->set_store_probe({});
    ASSERT_EQ(stores, 0u);
  }

  void end(Session& session, MissReason reason) {
    session.ended = Ended{reason, static_cast<std::uint32_t>(session.live->versions.size())};
    session.live.reset();
  }

  // The core may evict and expire by itself, but only what nobody has pinned, and it has to say so.
  void note_endings() {
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

  // ---- after each operation

  void check() {
    note_endings();
    ASSERT_EQ(h_.core->verify(), std::nullopt);
    const auto status = h_.core->status();
    ASSERT_LE(status.account.provisioned, setting_.limits.max_bytes);
    ASSERT_LE(orders_.held_bytes(), setting_.limits.max_bytes);
    std::map<std::uint32_t, std::uint64_t> by_owner;
    for (const auto& shard : status.shards) {
      by_owner[shard.key.owner_uid] += shard.account.provisioned;
      ASSERT_LE(shard.contexts, setting_.limits.session_cap);
    }
    for (const auto& [owner, bytes] : by_owner) {
      // An order that fails before its punches takes back what its owner was granted meanwhile.
      if (!setting_.fails_before_punching) {
        ASSERT_LE(bytes, setting_.limits.max_bytes_per_owner);
      }
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
      ASSERT_TRUE(rows(pinned) == pinned.bytes)
          << pinned.session << " epoch " << pinned.epoch << ", " << pinned.versions.size()
          << " tokens";
    }
    note_pinned();
  }

  Setting setting_;
  std::mt19937_64 random_;
  CoreHarness h_;
  OrderRunner orders_;
  Shard shards_[3];
  std::vector<Pinned> pins_;
  std::map<std::uint64_t, Append> waiting_;
  std::set<std::pair<core::ShardId, std::string>> pinned_before_;
  std::uint64_t number_ = 0;
  std::uint64_t hits_ = 0, misses_ = 0, evicted_ = 0, expired_ = 0, waits_ = 0;
};

class CoreModel : public ::testing::TestWithParam<Setting (*)()> {};

TEST_P(CoreModel, AgreesWithTheReferenceAfterEveryOperation) {
  const std::uint64_t seed = from_environment(
      "HOTKV_SEED",
      static_cast<std::uint64_t>(std::chrono::steady_clock::now().time_since_epoch().count()));
  const std::uint64_t operations = from_environment("HOTKV_MODEL_OPERATIONS", kOperations) / 3;
  const Setting setting = GetParam()();
  std::printf("%s: HOTKV_SEED=%llu\n", setting.name, static_cast<unsigned long long>(seed));
  Model model(setting, seed);
  for (std::uint64_t i = 1; i <= operations; ++i) {
    SCOPED_TRACE(testing::Message() << setting.name << ", HOTKV_SEED=" << seed << ", operation " << i);
    model.step(i);
    if (HasFatalFailure()) return;
  }
  model.finish();
}

INSTANTIATE_TEST_SUITE_P(Geometries, CoreModel,
                         ::testing::Values(one_chunk_an_extent, mixed_strides,
                                           four_chunks_an_extent));

}  // namespace
}  // namespace hotkv::test
