#pragma once
// One row of the crash matrix: what a crash cost, as figures.

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace hotkv::testing {

struct CrashRow {
  unsigned number;      // its place in the matrix
  std::string crashed;  // "worker killed between write and publish"
  std::uint32_t crashes = 0;

  // Promises: each of them 0.
  std::uint64_t tokens_lost = 0;       // published, and not there
  std::uint64_t unpublished_seen = 0;  // tokens there that nobody has published; wrong bytes
  std::uint64_t chunks_leaked = 0;     // not to be had once all clients are gone

  // Milliseconds of requests of workers that had nothing to do with it; empty where there were
  // none.
  std::vector<double> others_before{}, others_after{};
  // From the crash until the context that it struck is granted room again, or another one where the
  // row says so.
  std::vector<double> until_next_grant{};
};

// Prints the row, and writes it as JSON into the folder HOTKV_CRASH_MATRIX, where that is set.
// Fails the test for a promise that was not kept.
void report(const CrashRow& row);

}  // namespace hotkv::testing
