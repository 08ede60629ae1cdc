#pragma once
// What a sandbox does to system calls: a filter for a forked child, which has it to its end.

#include <linux/filter.h>
#include <linux/seccomp.h>
#include <sys/prctl.h>

#include <cstddef>
#include <cstdint>
#include <vector>

namespace hotkv::testing {

// A call, where all bits of the masks are set in the arguments named.
struct FilteredCall {
  struct Bits {
    std::uint32_t argument;
    std::uint32_t mask;
  };
  long number;
  std::vector<Bits> where{};
};

inline constexpr std::uint32_t kKillTheProcess = SECCOMP_RET_KILL_PROCESS;
[[nodiscard]] constexpr std::uint32_t fail_with(int os_errno) {
  return SECCOMP_RET_ERRNO | static_cast<std::uint32_t>(os_errno);
}

// For the calling thread and those it makes from now on. False where the kernel has no filters.
[[nodiscard]] inline bool filter_calls(const std::vector<FilteredCall>& calls,
                                       std::uint32_t action) {
  const auto load = [](std::size_t offset) {
    return sock_filter(BPF_STMT(BPF_LD | BPF_W | BPF_ABS, static_cast<std::uint32_t>(offset)));
  };
  std::vector<sock_filter> program;
  for (const FilteredCall& call : calls) {
    // Past the rest of this call's part, if it is another call.
    const auto rest = static_cast<std::uint8_t>(3 * call.where.size() + 1);
    program.push_back(load(offsetof(seccomp_data, nr)));
    program.push_back(
        BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, static_cast<std::uint32_t>(call.number), 0, rest));
    for (std::size_t index = 0; index < call.where.size(); ++index) {
      const auto [argument, mask] = call.where[index];
      const auto left = static_cast<std::uint8_t>(3 * (call.where.size() - index - 1) + 1);
      program.push_back(load(offsetof(seccomp_data, args) + 8 * argument));
      program.push_back(BPF_STMT(BPF_ALU | BPF_AND | BPF_K, mask));
      program.push_back(BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, mask, 0, left));
    }
    program.push_back(BPF_STMT(BPF_RET | BPF_K, action));
  }
  program.push_back(BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW));
  const sock_fprog filter{static_cast<unsigned short>(program.size()), program.data()};
  return ::prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) == 0 &&
         ::prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &filter) == 0;
}

}  // namespace hotkv::testing
