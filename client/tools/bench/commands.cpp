#include "client/tools/bench/commands.hpp"

#include <unistd.h>

#include <cstdio>

namespace hotkv::bench {

int fail(const Error& error) {
  std::fprintf(stderr, "hotkv-bench: %s\n", error.message().c_str());
  return error.code == ErrorCode::invalid_argument ? kExitUsage : kExitFailed;
}

void show_progress(std::size_t done, std::size_t all, const char* things) {
  constexpr int kWidth = 50;
  constexpr std::size_t kSteps = 400;  // fewer than requests: a line a step is enough
  if (all == 0 || ::isatty(STDERR_FILENO) == 0) return;
  if (done != all && done * kSteps / all == (done - 1) * kSteps / all) return;
  const int filled = static_cast<int>(done * kWidth / all);
  std::fprintf(stderr, "\r[%-*.*s] %zu of %zu %s%s", kWidth, filled,
               "##################################################", done, all, things,
               done == all ? "\n" : "");
}

}  // namespace hotkv::bench
