#include "daemon/effective_limits.hpp"

#include <gtest/gtest.h>

#include <fstream>

#include "tests/support/daemon_process.hpp"

namespace hotkv {
namespace {

constexpr std::uint64_t kGiB = std::uint64_t{1} << 30;

// FR-046: a group's limit is its shared memory's too.
TEST(EffectiveLimits, TheBudgetIsHalfOfTheSmallerOfMachineAndCgroupUnlessItIsGiven) {
  EXPECT_EQ(effective_limits({}, {.memory_bytes = 8 * kGiB})->max_bytes, 4 * kGiB);
  EXPECT_EQ(
      effective_limits({}, {.memory_bytes = 8 * kGiB, .cgroup_limit_bytes = 2 * kGiB})->max_bytes,
      kGiB);
  EXPECT_EQ(
      effective_limits({}, {.memory_bytes = 8 * kGiB, .cgroup_limit_bytes = 64 * kGiB})->max_bytes,
      4 * kGiB);
  Config config;
  config.max_bytes = 5 * kGiB;
  EXPECT_EQ(effective_limits(config, {.memory_bytes = 8 * kGiB})->max_bytes, 5 * kGiB);
  EXPECT_FALSE(effective_limits({}, {}).has_value());
}

// FR-037: what cannot be is refused at the start, not found out by losses.
TEST(EffectiveLimits, ABudgetThatTheMachineOrItsCgroupCannotHoldIsRefused) {
  Config config;
  config.max_bytes = 5 * kGiB;
  EXPECT_EQ(effective_limits(config, {.memory_bytes = 5 * kGiB})->max_bytes, 5 * kGiB);
  EXPECT_EQ(effective_limits(config, {})->max_bytes, 5 * kGiB);
  const auto refusal = [&](const MachineFacts& facts) {
    const auto limits = effective_limits(config, facts);
    return limits ? std::string("none") : limits.error().message();
  };
  EXPECT_EQ(refusal({.memory_bytes = 4 * kGiB}),
            "configure max_bytes: configuration-error: 5G, but this machine has 4G");
  EXPECT_EQ(refusal({.memory_bytes = 8 * kGiB, .cgroup_limit_bytes = 2 * kGiB}),
            "configure max_bytes: configuration-error: 5G, but its cgroup has 2G");
}

// FR-043: what the kernel does not do is neither promised nor shown as done.
TEST(EffectiveLimits, HugePagesFollowTheKernelsMode) {
  Config config;
  for (const char* mode : {"always", "within_size"}) {
    config.hugepages = HugePages::if_possible;
    EXPECT_TRUE(effective_limits(config, {kGiB, 0, mode})->huge_pages) << mode;
    config.hugepages = HugePages::require;
    EXPECT_TRUE(effective_limits(config, {kGiB, 0, mode})->huge_pages) << mode;
    config.hugepages = HugePages::off;
    EXPECT_FALSE(effective_limits(config, {kGiB, 0, mode})->huge_pages) << mode;
  }
  for (const char* mode : {"never", "deny", "advise", ""}) {
    config.hugepages = HugePages::if_possible;
    EXPECT_FALSE(effective_limits(config, {kGiB, 0, mode})->huge_pages) << mode;
    config.hugepages = HugePages::require;
    const auto refused = effective_limits(config, {kGiB, 0, mode});
    ASSERT_FALSE(refused.has_value()) << mode;
    EXPECT_EQ(refused.error().code, ErrorCode::configuration_error);
  }
}

// FR-037: a budget that the machine decides can contradict a setting, too; equal is no
// contradiction.
TEST(EffectiveLimits, SettingsThatCannotHoldOnThisMachineAreRefusedByName) {
  Config config;
  config.max_bytes_per_owner = 4 * kGiB;
  EXPECT_TRUE(effective_limits(config, {.memory_bytes = 8 * kGiB}).has_value());
  const auto crossed = effective_limits(config, {.memory_bytes = 8 * kGiB - 2});
  ASSERT_FALSE(crossed.has_value());
  EXPECT_EQ(crossed.error().code, ErrorCode::configuration_error);
  EXPECT_EQ(crossed.error().object, "max_bytes_per_owner");
  config = {};
  config.memory_reserve_bytes = 8 * kGiB;
  EXPECT_TRUE(effective_limits(config, {.memory_bytes = 8 * kGiB + 1}).has_value());
  const auto nothing_left = effective_limits(config, {.memory_bytes = 8 * kGiB});
  ASSERT_FALSE(nothing_left.has_value());
  EXPECT_EQ(nothing_left.error().object, "memory_reserve");
}

TEST(EffectiveLimits, WhatIsOffInTheConfigurationIsZeroForTheCore) {
  Config config;
  config.max_bytes = kGiB;
  config.default_ttl.reset();
  config.max_bytes_per_owner.reset();
  config.chunk_tokens.reset();
  const auto limits = effective_limits(config, {}).value();
  EXPECT_EQ(limits.ttl_ms, 0U);
  EXPECT_EQ(limits.max_bytes_per_owner, 0U);
  EXPECT_EQ(limits.chunk_tokens, 0U);
}

TEST(MachineFacts, AreReadFromProcAndSys) {
  const testing::TemporaryDirectory root;
  const auto write = [&](const std::string& path, const std::string& text) {
    const auto file = root.path() / path;
    std::filesystem::create_directories(file.parent_path());
    std::ofstream(file) << text;
  };
  write("proc/meminfo", "MemFree: 1 kB\nMemTotal:    8388608 kB\n");
  write("proc/self/cgroup", "0::/system.slice/hotkvd.service\n");
  write("sys/fs/cgroup/system.slice/hotkvd.service/memory.max", "max\n");
  write("sys/fs/cgroup/system.slice/memory.max", "2147483648\n");
  write("sys/kernel/mm/transparent_hugepage/shmem_enabled",
        "always within_size [advise] never deny force\n");
  const MachineFacts facts = read_machine_facts(root.path());
  EXPECT_EQ(facts.memory_bytes, 8 * kGiB);
  EXPECT_EQ(facts.cgroup_limit_bytes, 2 * kGiB);
  EXPECT_EQ(facts.shmem_huge_pages, "advise");
  const testing::TemporaryDirectory empty;
  EXPECT_EQ(read_machine_facts(empty.path()).memory_bytes, 0U);
}

}  // namespace
}  // namespace hotkv
