#pragma once
// How much of the loop's time a connection may take at once, and in the long run.

#include <algorithm>
#include <chrono>

namespace hotkv::server {

// A client may send requests ahead of their answers. One that never stops would keep the loop busy
// for good, and with itself two processors: each of the others would wait for both. So of what was
// sent ahead a lot is done as it comes, and then one part in kShare of the time is spent on it, or
// one frame a rest where that is more. Against a client that runs away, not one that means harm: it
// can connect anew.
class Pace {
 public:
  using Clock = std::chrono::steady_clock;
  static constexpr int kShare = 16;
  // Of the loop's time. A worker that lets thousands of contexts go at once is not slowed.
  static constexpr std::chrono::milliseconds kAtOnce{32};
  // Before a connection that is over its pace is read again. Seldom and long: each time that the
  // loop becomes busy can delay a request of somebody else.
  static constexpr std::chrono::milliseconds kRest{2};
  // Of one frame. What takes longer is seldom the client's doing: the process was stopped, or the
  // work of others fell due.
  static constexpr Clock::duration kChargeMax = std::chrono::milliseconds(4);

  // The loop was this connection's from `begin` to `end`.
  void charge(Clock::time_point begin, Clock::time_point end) {
    paid_until_ = std::max(paid_until_, begin) + kShare * std::min(end - begin, kChargeMax);
    paid_until_ = std::min(paid_until_, end + kShare * (kAtOnce + kChargeMax));
  }
  [[nodiscard]] bool is_used_up(Clock::time_point now) const {
    return paid_until_ - now > kShare * kAtOnce;
  }

 private:
  Clock::time_point paid_until_{};  // by time that passes
};

}  // namespace hotkv::server
