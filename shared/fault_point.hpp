#pragma once
// Named places where a test can stop a thread between two steps of a protocol.
//
// Compiled in only with HOTKV_FAULT_POINTS=1 (a library variant for tests); nothing otherwise.

#if defined(HOTKV_FAULT_POINTS) && HOTKV_FAULT_POINTS

#include <atomic>
#include <string_view>

namespace hotkv {

using FaultHandler = void (*)(std::string_view point);
// One handler for the process; nullptr: none. Called on the thread that reaches the point.
inline std::atomic<FaultHandler> fault_handler{nullptr};

inline void reach_fault_point(std::string_view point) {
  if (const FaultHandler handler = fault_handler.load(std::memory_order_acquire)) handler(point);
}

}  // namespace hotkv

#define HOTKV_FAULT_POINT(name) ::hotkv::reach_fault_point(name)
#else
#define HOTKV_FAULT_POINT(name) static_cast<void>(0)
#endif
