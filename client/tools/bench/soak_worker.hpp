#pragma once
// One worker of a soak: many sequences at once, a decode step of all of them after the other, as a
// serving engine with continuous batching does it.

#include <array>
#include <cstdint>
#include <deque>
#include <expected>
#include <optional>
#include <string>
#include <type_traits>
#include <vector>

#include <hotkv/client.hpp>

#include "client/tools/bench/latency_histogram.hpp"

namespace hotkv::bench {

// A request of a service: a prompt, of which the first `known_tokens` are of an earlier request of
// the session, and an answer.
struct SoakTask {
  std::uint32_t session = 0;
  std::uint32_t epoch = 1;
  std::uint32_t known_tokens = 0;
  std::uint32_t prompt_tokens = 0;  // with the known ones
  std::uint32_t output_tokens = 0;
  bool release = false;  // at its end; else the session stays cached for a later request
};
static_assert(std::is_trivially_copyable_v<SoakTask>);

// Said when a task is over.
struct SoakDone {
  std::uint32_t session = 0;
  std::uint32_t epoch = 0;
  std::uint32_t tokens = 0;  // cached of it now; 0 if it was released, or its context was lost
};

struct SoakTotals {
  std::uint64_t tasks = 0;
  std::uint64_t interrupted = 0;  // tasks whose context went away under them, or had no memory
  std::uint64_t steps = 0;
  std::uint64_t tokens_reused = 0;
  std::uint64_t tokens_prefilled = 0;
  std::uint64_t tokens_decoded = 0;
  std::uint64_t tokens_rolled_back = 0;  // published as a draft, then rejected
  std::uint64_t bytes_checked = 0;
  std::uint64_t wrong_bytes = 0;
  std::array<std::uint64_t, 11> misses{};  // by MissReason
  std::array<std::uint64_t, kErrorCodes> refusals{};
  LatencyHistogram resolve, step;  // a step: the appends of all its sequences, one call

  void add(const SoakTotals& other);
};
static_assert(std::is_trivially_copyable_v<SoakTotals>);

class SoakWorker {
 public:
  // As many sequences as an engine of moderate size runs at once.
  static constexpr std::size_t kSequencesMax = 16;

  explicit SoakWorker(Client client) : client_(std::move(client)) {}

  [[nodiscard]] bool has_room() const { return sequences_.size() < kSequencesMax; }
  [[nodiscard]] bool is_idle() const { return sequences_.empty(); }
  // Begins a task: reuses what is cached, after checking every byte of it. Over at once where it is
  // refused.
  [[nodiscard]] std::optional<SoakDone> start(const SoakTask& task);
  // One step of every sequence: a slice of its prompt, or a few drafted tokens of its answer of
  // which some are rejected. What is over is told in the result.
  [[nodiscard]] std::vector<SoakDone> step();
  [[nodiscard]] const SoakTotals& totals() const { return totals_; }

 private:
  struct Sequence {
    SoakTask task;
    std::string name;
    Context context;
    std::uint32_t length = 0;  // published and accepted
    std::uint32_t steps = 0;
    std::uint32_t rejected = 0;  // of the present step's tokens
    bool is_lost = false;

    [[nodiscard]] std::uint32_t end() const { return task.prompt_tokens + task.output_tokens; }
    [[nodiscard]] std::uint32_t tokens_of_step() const;
  };

  [[nodiscard]] std::uint32_t reuse(const SoakTask& task, const std::string& name);
  void write(Sequence& sequence, std::expected<Writer, Refusal>& writer, std::uint32_t tokens);
  void reject_drafts();
  [[nodiscard]] SoakDone finish(Sequence& sequence);
  // Every byte that is cached of a sequence.
  void check(const Sequence& sequence);
  void lose(Sequence& sequence, const Refusal& refusal);
  void note(const Refusal& refusal);

  Client client_;
  std::deque<Sequence> sequences_;  // contexts are pointed at while a step is under way
  SoakTotals totals_;
};

// The child's side of a soak: SoakTask frames in, SoakDone frames out, and after the parent has
// shut down its end, the SoakTotals. Returns the exit code.
[[nodiscard]] int serve_soak(int socket, const std::string& control_path);

}  // namespace hotkv::bench
