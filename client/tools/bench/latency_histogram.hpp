#pragma once
// Times in buckets an eighth of an octave wide: quantiles within 9 %, of any number of samples, in
// a fixed room that can be sent between processes.

#include <algorithm>
#include <array>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <type_traits>

namespace hotkv::bench {

class LatencyHistogram {
 public:
  void add(std::uint64_t ns) { ++counts_[bucket_of(ns)]; }
  void add(const LatencyHistogram& other) {
    for (std::size_t i = 0; i < counts_.size(); ++i) counts_[i] += other.counts_[i];
  }
  [[nodiscard]] std::uint64_t count() const {
    std::uint64_t sum = 0;
    for (const std::uint64_t count : counts_) sum += count;
    return sum;
  }
  // The upper edge of the bucket that holds the quantile; 0 without samples.
  [[nodiscard]] std::uint64_t quantile_ns(double q) const {
    const auto wanted = static_cast<std::uint64_t>(q * static_cast<double>(count()));
    std::uint64_t sum = 0;
    for (std::size_t i = 0; i < counts_.size(); ++i) {
      sum += counts_[i];
      if (counts_[i] > 0 && sum >= std::max<std::uint64_t>(wanted, 1)) return edge_of(i);
    }
    return 0;
  }

 private:
  static constexpr double kPerOctave = 8;
  static constexpr std::size_t kBuckets = 320;  // up to 2^40 ns, 18 minutes

  static std::size_t bucket_of(std::uint64_t ns) {
    if (ns < 2) return 0;
    const double octaves = std::log2(static_cast<double>(ns));
    return std::min(static_cast<std::size_t>(octaves * kPerOctave), kBuckets - 1);
  }
  static std::uint64_t edge_of(std::size_t bucket) {
    return static_cast<std::uint64_t>(std::exp2(static_cast<double>(bucket + 1) / kPerOctave));
  }

  std::array<std::uint64_t, kBuckets> counts_{};
};
static_assert(std::is_trivially_copyable_v<LatencyHistogram>);

}  // namespace hotkv::bench
