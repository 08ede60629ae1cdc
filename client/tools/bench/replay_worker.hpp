#pragma once
// One worker of a replay: a process of its own that continues sessions and checks what it reuses.

#include <cstdint>
#include <expected>
#include <string>

#include <hotkv/client.hpp>

#include "client/tools/bench/worker_process.hpp"

namespace hotkv::bench {

// What stands for a model in a replay: a block of the trace is kTokensPerBlock tokens, which are
// one chunk of 4 KiB. Sizes are small so that an hour of a service fits a test; lengths, order and
// sharing are the trace's.
inline constexpr std::uint32_t kTokensPerBlock = 16;
[[nodiscard]] Recipe replay_recipe();

// A request, as the router hands it to a worker.
struct ReplayTask {
  std::uint32_t session = 0;
  std::uint32_t known_tokens = 0;  // of the prompt, those that the session had cached once
  std::uint32_t tokens = 0;        // of the prompt
};

// What came of it. Times are of the library's calls, without filling and checking.
struct ReplayOutcome {
  std::uint32_t reused_tokens = 0;
  std::uint32_t computed_tokens = 0;
  std::uint32_t miss_reason = 0;  // a MissReason, 0 for none
  std::uint32_t error_code = 0;   // an ErrorCode, 0 for none: the request was not served
  std::uint64_t wrong_bytes = 0;
  std::uint64_t resolve_ns = 0;  // 0: not called
  std::uint64_t open_ns = 0;
  std::uint64_t append_ns = 0;
};

class ReplayWorker {
 public:
  explicit ReplayWorker(Client client) : client_(std::move(client)) {}
  // Reuses what is cached of the known tokens, after checking every byte of it; fills and publishes
  // the rest with a pattern of session, position and layer; gives the lease back.
  [[nodiscard]] ReplayOutcome run(const ReplayTask& task);

 private:
  void append(Context& context, const ReplayTask& task, const std::string& name,
              ReplayOutcome& outcome);
  Client client_;
};

// The same in a forked process, which ends with this object. Make it before any thread.
class ReplayProcess {
 public:
  explicit ReplayProcess(const std::string& control_path);
  // Errors: system_error if the process is gone.
  [[nodiscard]] std::expected<ReplayOutcome, Error> run(const ReplayTask& task);

 private:
  WorkerProcess process_;
};

}  // namespace hotkv::bench
