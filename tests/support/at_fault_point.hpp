#pragma once
// What happens between two steps of a protocol: something else, at a named fault point.

#include <gtest/gtest.h>

#include <functional>
#include <string>
#include <string_view>
#include <utility>

#include "shared/fault_point.hpp"

// Only where there are fault points: in tests that link the _faults variants of the libraries.
#if defined(HOTKV_FAULT_POINTS) && HOTKV_FAULT_POINTS

namespace hotkv::testing {

// Runs `act` on the thread that reaches `point`, the first time it does or every time, while this
// lives. A point that is never reached fails the test. One at a time in a process.
class AtFaultPoint {
 public:
  AtFaultPoint(std::string point, std::function<void()> act, bool every_time = false)
      : point_(std::move(point)), act_(std::move(act)), every_time_(every_time) {
    current = this;
    fault_handler = [](std::string_view reached) { current->reach(reached); };
  }
  ~AtFaultPoint() {
    fault_handler = nullptr;
    EXPECT_TRUE(was_reached_) << "never reached " << point_;
  }
  AtFaultPoint(const AtFaultPoint&) = delete;
  AtFaultPoint& operator=(const AtFaultPoint&) = delete;

 private:
  void reach(std::string_view reached) {
    if (reached != point_ || (was_reached_ && !every_time_)) return;
    was_reached_ = true;
    act_();
  }
  static inline AtFaultPoint* current = nullptr;
  std::string point_;
  std::function<void()> act_;
  bool every_time_;
  bool was_reached_ = false;
};

}  // namespace hotkv::testing

#endif
