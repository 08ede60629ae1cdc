#pragma once
// Named places where a test can stop a thread between two steps of a protocol.
//
// Compiled in only with HOTKV_FAULT_POINTS=1 (a library variant for tests); nothing otherwise.

#if defined(HOTKV_FAULT_POINTS) && HOTKV_FAULT_POINTS

#include <signal.h>

#include <atomic>
#include <cstdlib>
#include <string_view>

namespace hotkv {

using FaultHandler = void (*)(std::string_view point);
// One handler for the process; nullptr: none. Called on the thread that reaches the point.
inline std::atomic<FaultHandler> fault_handler{nullptr};

inline void reach_fault_point(std::string_view point) {
  if (const FaultHandler handler = fault_handler.load(std::memory_order_acquire)) handler(point);
}

}  // namespace hotkv

// Mistakes that a test plants in a process, to see that its checks find them: the variable
// PLANTED_FAULT of its environment is "NAME" or "NAME=NUMBER".
namespace hotkv {

inline std::string_view planted_fault() {
  static const char* const planted = std::getenv("PLANTED_FAULT");
  return planted == nullptr ? std::string_view() : std::string_view(planted);
}

// True at the NUMBER-th call, counted from 1; for one name a process.
inline bool is_planted_moment(std::string_view name) {
  const std::string_view planted = planted_fault();
  if (!planted.starts_with(name) || planted.substr(name.size(), 1) != "=") return false;
  static const long moment = std::strtol(planted.data() + name.size() + 1, nullptr, 10);
  static std::atomic<long> calls{0};
  return ++calls == moment;
}

}  // namespace hotkv

#define HOTKV_FAULT_POINT(name) ::hotkv::reach_fault_point(name)
#define HOTKV_IS_PLANTED(name) (::hotkv::planted_fault() == (name))
#define HOTKV_DIE_IF_PLANTED(name)                          \
  do {                                                      \
    if (::hotkv::is_planted_moment(name)) ::raise(SIGKILL); \
  } while (false)
#else
#define HOTKV_FAULT_POINT(name) static_cast<void>(0)
#define HOTKV_IS_PLANTED(name) false
#define HOTKV_DIE_IF_PLANTED(name) static_cast<void>(0)
#endif
