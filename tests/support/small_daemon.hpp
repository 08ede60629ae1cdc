#pragma once
// A daemon with little memory and nobody beside it, for tests that fill the memory and count what
// has to go for it.

#include <gtest/gtest.h>
#include <sys/types.h>

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "tests/support/daemon_process.hpp"
#include "tests/support/kv_worker.hpp"

namespace hotkv::testing {

class SmallDaemon : public ::testing::Test {
 protected:
  // A chunk of worker_recipe(): 16 tokens of 128 bytes, on a page of their own.
  static constexpr std::uint32_t kChunkTokens = 16;
  static constexpr std::uint64_t kChunkBytes = 4096;
  static constexpr std::uint32_t kChunks = 64;

  // `flags` beside those for 64 chunks; a flag given here takes the place of one of those.
  explicit SmallDaemon(const std::vector<std::string>& flags = {});
  void SetUp() override { ASSERT_TRUE(daemon_.wait_ready()) << daemon_.err(); }
  void TearDown() override {
    EXPECT_EQ(broken_invariant(daemon_), "");
    EXPECT_EQ(daemon_.stop(), 0) << daemon_.err();
  }

  // Of the shard of worker_recipe(), by its place: "/account/kept_bytes", "/clients".
  [[nodiscard]] std::uint64_t shard_number(const std::string& place) const;
  // Contexts of all shards that somebody pins, and those that somebody has the lease of.
  [[nodiscard]] std::size_t pinned_contexts() const;
  [[nodiscard]] std::size_t leased_contexts() const;
  // A context takes all memory there is: nothing is held by anybody.
  [[nodiscard]] std::string whole_budget_refusal(KvWorker& worker) const;

  DaemonProcess daemon_;
};

// A line of /proc/PID/status in bytes: "RssAnon" is what a process has beside mapped files.
[[nodiscard]] std::uint64_t process_bytes(pid_t pid, const std::string& name);

[[nodiscard]] inline SessionId session_id(std::string_view text) {
  return SessionId::from(text).value();
}

}  // namespace hotkv::testing
