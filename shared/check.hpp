#pragma once
// Stops the process on a bug of our own. Nothing that a peer sends or can write may ever reach one.

#include <cstdio>
#include <cstdlib>

#define HOTKV_CHECK(condition, what)                                                     \
  do {                                                                                   \
    if (!(condition)) [[unlikely]] {                                                     \
      std::fprintf(stderr, "hotkv: bug: %s (%s) at %s:%d\n", what, #condition, __FILE__, \
                   __LINE__);                                                            \
      std::abort();                                                                      \
    }                                                                                    \
  } while (false)
