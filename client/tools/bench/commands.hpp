#pragma once
// What hotkv-bench does, one function a command. Each prints to stdout, says on stderr why it could
// not, and returns the exit code.

#include <cstddef>
#include <cstdint>
#include <string>

#include <hotkv/error.hpp>

namespace hotkv::bench {

inline constexpr int kExitOk = 0;
inline constexpr int kExitFailed = 1;  // also: something was wrong with what was measured
inline constexpr int kExitUsage = 2;

struct ReplayFlags {
  std::string trace, max_bytes = "4G", ttl = "off", speed = "max";
  std::uint32_t workers = 4;
  std::uint32_t session_cap = 100000;
  std::size_t requests = 0;  // 0: all
  bool as_json = false;
};
int run_replay(const ReplayFlags& flags);

struct CurveFlags {
  std::string trace, csv, svg;  // the latter two: files to write, empty for none
  // Llama 3 8B in half precision: 2 (K and V) * 32 layers * 8 heads * 128 elements * 2 bytes.
  std::uint64_t bytes_per_token = 131072;
  std::uint32_t check = 0;  // replays that the curve is compared with
  std::uint32_t workers = 4;
  std::size_t requests = 0;
};
int run_curve(const CurveFlags& flags);

struct SoakFlags {
  std::string trace, max_bytes = "64M", ttl = "1s", speed = "30";
  std::uint32_t seconds = 30;
  std::uint32_t workers = 4;
  std::uint32_t session_cap = 200;
  bool as_json = false;
};
int run_soak(const SoakFlags& flags);

// Says why on stderr; the exit code for it.
int fail(const Error& error);
// A bar on stderr if that is a terminal: `done` of `all` `things`.
void show_progress(std::size_t done, std::size_t all, const char* things);

}  // namespace hotkv::bench
