#include "client/tools/bench/reuse_curve.hpp"

#include <algorithm>
#include <cstddef>
#include <map>
#include <unordered_map>

#include "client/tools/bench/session_book.hpp"

namespace hotkv::bench {
namespace {

// Sums over ranges of numbers that change (Fenwick 1994): both in the logarithm of their count.
class RunningSums {
 public:
  explicit RunningSums(std::size_t count) : nodes_(count + 1) {}
  void add(std::size_t index, std::uint64_t value) {
    for (std::size_t node = index + 1; node < nodes_.size(); node += node & -node) {
      nodes_[node] += value;  // modulo 2^64, so that "minus" is adding the complement
    }
  }
  // Of [0, end).
  [[nodiscard]] std::uint64_t sum(std::size_t end) const {
    std::uint64_t total = 0;
    for (std::size_t node = end; node > 0; node &= node - 1) total += nodes_[node];
    return total;
  }

 private:
  std::vector<std::uint64_t> nodes_;
};

struct LastUse {
  std::size_t request;
  std::uint64_t blocks;
};

}  // namespace

ReuseCurve::ReuseCurve(const std::vector<TraceRequest>& trace) {
  SessionBook book;
  RunningSums blocks_of_last_uses(trace.size());  // by the request that used a session last
  std::unordered_map<std::uint32_t, LastUse> last_uses;
  std::map<std::uint64_t, Reuse> by_distance;
  for (std::size_t i = 0; i < trace.size(); ++i) {
    const auto turn = book.next(std::span(trace[i].block_ids).first(trace[i].full_blocks()));
    prompt_blocks_ += trace[i].block_ids.size();
    largest_prompt_ = std::max<std::uint64_t>(largest_prompt_, turn.blocks);
    const auto last = last_uses.find(turn.session);
    if (last != last_uses.end()) {
      const auto [request, blocks] = last->second;
      Reuse& reuse = by_distance[blocks_of_last_uses.sum(i) - blocks_of_last_uses.sum(request)];
      reuse.blocks += turn.known_blocks;
      ++reuse.requests;
      blocks_of_last_uses.add(request, -blocks);
    }
    last_uses[turn.session] = {i, turn.blocks};
    blocks_of_last_uses.add(i, turn.blocks);
  }
  Reuse sum;
  for (const auto& [distance, reuse] : by_distance) {
    sum.blocks += reuse.blocks;
    sum.requests += reuse.requests;
    steps_.push_back({distance, sum});
  }
}

ReuseCurve::Reuse ReuseCurve::at(std::uint64_t memory_blocks) const {
  const auto behind = std::ranges::upper_bound(steps_, memory_blocks, {}, &Step::memory_blocks);
  return behind == steps_.begin() ? Reuse{} : std::prev(behind)->reuse;
}

ReuseCurve::Reuse ReuseCurve::most() const {
  return steps_.empty() ? Reuse{} : steps_.back().reuse;
}

std::uint64_t ReuseCurve::enough_blocks() const {
  return steps_.empty() ? 0 : steps_.back().memory_blocks;
}

std::uint64_t ReuseCurve::memory_for(std::uint64_t blocks) const {
  const auto step =
      std::ranges::lower_bound(steps_, blocks, {}, [](const Step& s) { return s.reuse.blocks; });
  return step == steps_.end() ? enough_blocks() : step->memory_blocks;
}

}  // namespace hotkv::bench
