#pragma once
// How much of a trace is reused with how much memory, from one pass over it.

#include <cstdint>
#include <vector>

#include "client/tools/bench/trace.hpp"

namespace hotkv::bench {

// Stack distances (Mattson, Gecsei, Slutz, Traiger: Evaluation techniques for storage hierarchies,
// IBM Systems Journal 9(2), 1970), of sessions instead of pages: what is evicted is the whole
// session that was used longest ago. A request finds its session if and only if the session and all
// that were used since fit in the memory together. Sizes are in blocks of the trace.
//
// This is what a daemon with that budget does, exactly, as long as no single prompt is larger than
// the memory, and neither the session cap nor a time to live ends a session before the budget does.
class ReuseCurve {
 public:
  explicit ReuseCurve(const std::vector<TraceRequest>& trace);

  struct Reuse {
    std::uint64_t blocks = 0;    // found cached
    std::uint64_t requests = 0;  // that found any
    friend bool operator==(const Reuse&, const Reuse&) = default;
  };
  [[nodiscard]] Reuse at(std::uint64_t memory_blocks) const;
  // With memory without bound, and the least memory that gives as much.
  [[nodiscard]] Reuse most() const;
  [[nodiscard]] std::uint64_t enough_blocks() const;
  // The least memory with which at least `blocks` blocks are reused; enough_blocks() if it is more
  // than can be.
  [[nodiscard]] std::uint64_t memory_for(std::uint64_t blocks) const;
  // Full blocks of the largest prompt: with less memory the curve is not what a daemon does.
  [[nodiscard]] std::uint64_t largest_prompt() const { return largest_prompt_; }
  // Blocks of all prompts, part-filled last ones included.
  [[nodiscard]] std::uint64_t prompt_blocks() const { return prompt_blocks_; }

 private:
  struct Step {
    std::uint64_t memory_blocks;
    Reuse reuse;  // with at least that memory
  };
  std::vector<Step> steps_;  // rising in both
  std::uint64_t largest_prompt_ = 0;
  std::uint64_t prompt_blocks_ = 0;
};

}  // namespace hotkv::bench
