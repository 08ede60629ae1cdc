#pragma once
// A curve of reuse against memory, for people who size a node: a table, CSV, and a picture.

#include <cstdint>
#include <string>
#include <vector>

#include "client/tools/bench/reuse_curve.hpp"

namespace hotkv::bench {

struct CurveReport {
  ReuseCurve curve;
  std::string title;                  // the trace's name
  std::uint64_t bytes_per_token = 0;  // K and V of all layers of the model that the node is for
  struct Measured {
    std::uint64_t memory_blocks;
    ReuseCurve::Reuse reuse;
  };
  std::vector<Measured> measured;  // replays against a real daemon, by rising memory

  [[nodiscard]] std::uint64_t bytes_of(std::uint64_t blocks) const {
    return blocks * TraceRequest::kBlockTokens * bytes_per_token;
  }
};

// The memory for certain shares of what can be reused at most, and what was measured.
[[nodiscard]] std::string text_of(const CurveReport& report);
// A row for each hundredth of the memory that suffices, and one for each measured point; the last
// column is empty in the former.
[[nodiscard]] std::string csv_of(const CurveReport& report);
// The curve as a line, measured points as dots.
[[nodiscard]] std::string svg_of(const CurveReport& report);

}  // namespace hotkv::bench
