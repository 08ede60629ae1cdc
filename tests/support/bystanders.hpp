#pragma once
// Workers beside a crash that have nothing to do with it: how long they wait for what they ask.

#include <array>
#include <atomic>
#include <chrono>
#include <cstdint>
#include <string>
#include <vector>

#include "tests/support/forked_child.hpp"
#include "tests/support/shared_memory_of.hpp"

namespace hotkv::testing {

// Processes with a shard of their own ("bystander"). Each opens a context, gets a chunk granted and
// releases it, over and over, and insists where it is refused: a request then takes as long as the
// outage. So they have three round trips of the control channel in every request.
class Bystanders {
 public:
  using Clock = std::chrono::steady_clock;  // the same in all processes

  static constexpr std::uint32_t kProcesses = 2;

  // Forks.
  explicit Bystanders(const std::string& control_path);
  ~Bystanders() { stop(); }
  Bystanders(const Bystanders&) = delete;
  Bystanders& operator=(const Bystanders&) = delete;

  // Milliseconds that a request would have waited which came at any moment between two: one for
  // each process and half a millisecond, until the end of the request that it is in or that comes
  // next. (Requests themselves would hide an outage: it is one of them, however long.) To be asked
  // once the last of them is answered.
  [[nodiscard]] std::vector<double> waits(Clock::time_point from, Clock::time_point to) const;
  // Requests answered so far, of the process that has least.
  [[nodiscard]] std::uint64_t answered() const;
  // Returns once the processes have ended, which they must in order.
  void stop();

 private:
  static constexpr std::size_t kRequestsMax = 1 << 16;
  struct Request {
    Clock::time_point begin, end;
  };
  struct Log {  // in memory of all processes; a request is written before it is counted
    std::array<Request, kRequestsMax> requests;
    std::atomic<std::uint64_t> count{0};
    std::atomic<bool> ending{false};
  };
  static int ask(const std::string& control_path, const std::string& session, Log& log);

  std::array<SharedMemoryOf<Log>, kProcesses> logs_;
  std::vector<ForkedChild> processes_;
};

}  // namespace hotkv::testing
