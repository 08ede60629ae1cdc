#pragma once
// Pids as messages show them.

#include <cstdint>
#include <string>

namespace hotkv::core {

// A client whose process is not visible from here, in another pid namespace, has pid 0.
[[nodiscard]] inline std::string pid_text(std::uint32_t pid) {
  return pid == 0 ? "unknown" : std::to_string(pid);
}

}  // namespace hotkv::core
