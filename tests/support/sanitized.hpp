#pragma once
// Whether this build runs under a sanitizer, whose allocator keeps what was freed and whose code
// takes several times as long: a process's private bytes say nothing of its own then, and of what
// is slow there are fewer.

namespace hotkv::testing {

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
inline constexpr bool kIsSanitized = true;
#else
inline constexpr bool kIsSanitized = false;
#endif

}  // namespace hotkv::testing
