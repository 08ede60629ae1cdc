#pragma once
// The naive reference for the core: a map from session to the list of its tokens' versions, and the
// random operations that are done to both.

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <random>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "tests/support/core_harness.hpp"
#include "tests/support/order_runner.hpp"

namespace hotkv::test {

// What one run is made of: three shards, the first two of one owner.
struct Setting {
  const char* name;
  core::Limits limits;
  LayerRange layers[3];
  std::uint32_t step_tokens;  // lengths are multiples of about this, so that chunks are crossed
};

// One run over one setting. A difference is a fatal failure of the test that runs it.
class Model {
 public:
  static constexpr std::uint32_t kClientsOfAShard = 3;
  // Those that a restart stranded as well.
  static constexpr std::uint32_t kPagesOfAShard = 2 * kClientsOfAShard;
  static constexpr std::uint32_t kSessions = 7;  // names; more than a session cap should let live

  Model(const Setting& setting, std::uint64_t seed);

  // One random operation, and all checks after it.
  void step(std::uint64_t number);

  // Everybody lets go: all of it can be freed. Says what was met.
  void finish();
  // Whether the run met hits, evictions, tail copies and waiting appends at all.
  [[nodiscard]] bool met_everything() const;

 private:
  // ---- the reference

  struct Context {
    std::uint64_t epoch = 0;
    std::vector<std::uint32_t> versions;  // of each published token
    // Number of the client in its shard, or of one that lives without a connection.
    std::optional<std::uint32_t> holder;
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
  // A client of an earlier daemon: its mapping lives on, its connection does not.
  struct Stranded {
    std::uint32_t number;
    std::unique_ptr<CoreClient> client;
  };
  struct Shard {
    core::ShardId id;
    std::vector<std::unique_ptr<CoreClient>> clients;
    std::vector<Stranded> stranded;
    std::map<std::string, Session> sessions;
  };
  struct Pinned {
    Shard* shard;
    CoreClient* client;
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

  static constexpr std::uint32_t kStrandedFirst =
      1000;  // numbers of clients above those in a shard

  static unsigned long long count(std::uint64_t n) { return n; }
  std::uint32_t below(std::size_t n) { return static_cast<std::uint32_t>(random_() % n); }
  std::uint64_t copies() const;
  // One more of this outcome.
  void note(const std::string& outcome) { ++tally_[outcome]; }
  void note(const char* operation, const Refusal& refusal);

  // Only these positions carry the pattern and are looked at, where chunks are large: their edges,
  // and every 64th.
  bool is_marked(std::uint32_t position) const;
  // The marked rows of a pinned view, one after the other.
  std::vector<std::byte> rows(const Pinned& pinned) const;
  // What those rows have to be.
  std::vector<std::byte> pattern(const Pinned& pinned) const;
  // From now on the view's bytes are looked at after each operation.
  void hold(Pinned pinned);
  void note_pinned();
  bool is_pinned(const Shard& shard, const std::string& session, const Context& context) const;
  std::optional<SlotIndex> slot_of(const Shard& shard, const std::string& session) const;
  std::optional<Generation> generation_of(const Shard& shard, const std::string& session) const;

  // ---- operations; each says what the core may answer

  void attach(Shard& shard) { shard.clients.push_back(std::make_unique<CoreClient>(h_, shard.id)); }

  void open(Shard& shard, std::uint32_t client, const std::string& name, int raise);

  void append(Shard& shard, std::uint32_t client, const std::string& name);

  void check_refusal(const Session& session, std::uint32_t client, const Refusal& refusal);

  // Writes what was granted, and publishes all of it or a part.
  void publish(const Append& granted, const core::Position& position);

  void pin(Shard& shard, std::uint32_t client, const std::string& name);

  void check_miss(const Session& session, const Refusal& refusal);

  void explain(Shard& shard, std::uint32_t client, const std::string& name);

  void unpin();

  void truncate(Shard& shard, std::uint32_t client, const std::string& name);

  void release(Shard& shard, std::uint32_t client, const std::string& name);

  void close(Shard& shard, std::uint32_t client, const std::string& name);

  // A client dies, or hangs up first: then others take some of its leases over while it lives, and
  // its pins hold. Another one attaches in its place.
  void leave(Shard& shard, std::uint32_t client, bool dies);

  void run_order();

  // The daemon dies and a new one rebuilds everything from the files; meanwhile writers use up what
  // they were granted. The clients' pins and leases live on until the clients do not.
  void restart();
  void write_without_a_daemon(Shard& shard, const std::string& name);
  void kill_a_rebuild();
  void strand(Shard& shard);
  void end_stranded(Shard& shard, std::size_t which);

  void tick();

  void look();

  void end(Session& session, MissReason reason);

  // The core may evict and expire by itself, but only what nobody has pinned, and it has to say so.
  void note_endings();

  // ---- after each operation

  void check();

  Setting setting_;
  std::mt19937_64 random_;
  CoreHarness h_;
  OrderRunner orders_;
  Shard shards_[3];
  std::vector<Pinned> pins_;
  std::map<std::uint64_t, Append> waiting_;
  std::set<std::pair<core::ShardId, std::string>> pinned_before_;
  std::uint64_t number_ = 0;
  std::uint32_t next_stranded_ = kStrandedFirst;
  std::uint64_t copies_before_ = 0;  // counted by daemons that have died
  std::map<std::string, std::uint64_t> tally_;
  std::uint64_t hits_ = 0, misses_ = 0, evicted_ = 0, expired_ = 0, waits_ = 0, restarts_ = 0;
};

}  // namespace hotkv::test
