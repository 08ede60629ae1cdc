#pragma once
// One shard at work: a ShardComputation whose K and V are kept by hotkv.

#include <cstdint>
#include <expected>
#include <map>
#include <optional>
#include <span>
#include <utility>
#include <vector>

#include <hotkv/client.hpp>

#include "client/adapter/sampling_contract.hpp"
#include "client/adapter/shard_computation.hpp"

namespace hotkv::adapter {

// What crosses the boundary into a shard, for one sequence: rows for positions [position, …).
struct ShardInput {
  ContextKey key;
  // Tokens that this shard must have cached already; what it has beyond them is rolled back.
  TokenCount position;
  std::vector<TokenId> tokens{};  // into the head
  std::vector<float> residual{};  // into all others: [tokens][dim], never normalised
  // Asks the tail for the token after the last row.
  std::optional<SamplingContract> sampling{};
};

// What crosses it on the other side.
struct ShardOutput {
  std::vector<float> residual;   // of all but the tail: [tokens][dim], not normalised
  std::optional<TokenId> token;  // of the tail, where it was asked for
};

// A refusal, and whether shards in front of the refusing one have run and published the step.
struct ShardRefusal : Refusal {
  ShardRefusal(Refusal refusal) : Refusal(std::move(refusal)) {}  // NOLINT: converts by itself
  bool ran_in_front = false;
};

using ShardResult = std::expected<ShardOutput, ShardRefusal>;

// Runs steps of many sequences through one shard. A step is: look up what is cached (a view), make
// room (a writer), compute over both in place, publish. Published is a step as a whole or not at
// all, so a worker that dies in it leaves what was before.
//
// Holds the lease of every context that it has worked on until it is given back or lost, or until
// kHeldMax others were worked on since. One thread's.
class BoundaryAdapter {
 public:
  // Sequences of one step: each takes a view and a writer out of a client's 1016 pins.
  static constexpr std::size_t kBatchMax = 256;
  // Leases held at once: a router that dies gives none back, and leases must not pile up for that.
  // One let go costs a message when it is needed again.
  static constexpr std::size_t kHeldMax = 1024;

  // Attaches with the recipe of `computation`, which outlives the adapter.
  // Errors: recipe_for's and Client::attach's.
  [[nodiscard]] static std::expected<BoundaryAdapter, Error> attach(const ClientOptions& options,
                                                                    ShardComputation& computation);

  // Result i belongs to input i; one sequence's refusal does not touch the others. No two inputs
  // have the same key. Contexts that are not held are opened, those too long truncated, and those
  // without room for the new tokens granted it: each with one control message for all. A decode
  // step within its grants sends none; a miss costs a round trip of its own.
  //
  // Misses: fewer than `position` tokens are cached (seq_len_mismatch with the known length), or
  // none and why. Errors: invalid_argument (rows of a wrong count, a token outside the vocabulary,
  // beyond the model's context, a key twice, too many inputs), session_busy (another worker has
  // the lease), lease_lost (another worker took it: the next step opens anew), and append's.
  [[nodiscard]] std::vector<ShardResult> run(std::span<const ShardInput> batch);

  // Tokens that this shard has published of a context; where there are fewer than `expected`,
  // `miss` says why.
  struct Cached {
    TokenCount published;
    std::optional<CacheMiss> miss;
  };
  [[nodiscard]] Cached cached(const ContextKey& key, TokenCount expected) const;

  // Gives the lease back and leaves the context to the next worker. Nothing if it is not held.
  // Errors: Context::close's; the lease is not held any more either way.
  [[nodiscard]] std::expected<void, Refusal> give_back(const ContextKey& key);

  [[nodiscard]] const Client& client() const { return client_; }
  [[nodiscard]] const ShardComputation& computation() const { return *computation_; }

 private:
  using Name = std::pair<SessionId, Epoch>;
  struct Held {
    Context context;
    std::uint64_t last_step;
  };
  struct Sequence;  // one input on its way through a step

  BoundaryAdapter(Client client, ShardComputation& computation)
      : client_(std::move(client)), computation_(&computation) {}

  [[nodiscard]] std::expected<void, Error> check(const ShardInput& input) const;
  // Sets the view, or that too much is cached; else the miss.
  [[nodiscard]] std::optional<CacheMiss> find_view(Sequence& sequence) const;
  void find_view_or_begin(Sequence& sequence);
  void give_back_oldest();
  void open(std::vector<Sequence>& sequences);
  void truncate(std::vector<Sequence>& sequences);
  void make_room(std::vector<Sequence>& sequences);
  void compute(std::vector<Sequence>& sequences);
  void publish(Sequence& sequence);
  [[nodiscard]] TokenId sample_after(std::span<const float> residual,
                                     const SamplingContract& sampling);
  void refuse(Sequence& sequence, Refusal refusal);

  Client client_;
  ShardComputation* computation_;
  std::map<Name, Held> held_;
  std::uint64_t step_ = 0;
};

}  // namespace hotkv::adapter
