#include "daemon/platform/headroom.hpp"

#include <cstdlib>
#include <fstream>
#include <string>

#include <gtest/gtest.h>

namespace hotkv::platform {
namespace {

namespace fs = std::filesystem;

constexpr std::uint64_t kMiB = std::uint64_t{1} << 20;

// A root with /proc and cgroup files of the test's making.
class HeadroomFiles : public ::testing::Test {
 protected:
  void SetUp() override {
    char name[] = "/tmp/hotkv-test-XXXXXX";
    ASSERT_NE(::mkdtemp(name), nullptr);
    root_ = name;
    write("proc/meminfo", "MemTotal: 9999999 kB\nMemAvailable:    1048576 kB\n");  // 1 GiB
  }
  void TearDown() override { fs::remove_all(root_); }

  void write(const std::string& name, const std::string& text) const {
    const fs::path path = root_ / name;
    fs::create_directories(path.parent_path());
    std::ofstream(path) << text;
  }
  void mount_version2(const std::string& mount_root, const std::string& group) const {
    write("proc/self/mountinfo",
          "22 1 0:20 / /proc rw - proc proc rw\n"
          "30 22 0:26 " +
              mount_root + " /sys/fs/cgroup rw,nosuid shared:4 - cgroup2 cgroup2 rw\n");
    write("proc/self/cgroup", "0::" + group + "\n");
  }
  [[nodiscard]] std::expected<MemoryRoom, Error> room(std::uint64_t machine_reserve = 0,
                                                      std::uint64_t cgroup_reserve = 0) const {
    return Headroom({root_, machine_reserve, cgroup_reserve}).room();
  }

  fs::path root_;
};

TEST_F(HeadroomFiles, WithoutCgroupsItIsTheMachinesLessTheReserve) {
  const auto all = room();
  ASSERT_TRUE(all.has_value()) << all.error().message();
  EXPECT_EQ(all->available_bytes, 1024 * kMiB);
  EXPECT_EQ(all->limit, "MemAvailable");
  EXPECT_EQ(room(24 * kMiB)->available_bytes, 1000 * kMiB);
  EXPECT_EQ(room(2048 * kMiB)->available_bytes, 0U);
}

TEST_F(HeadroomFiles, TheTightestGroupAboveUsWins) {
  mount_version2("/", "/system.slice/hotkvd.service");
  write("sys/fs/cgroup/system.slice/memory.max", std::to_string(100 * kMiB) + "\n");
  write("sys/fs/cgroup/system.slice/memory.current", std::to_string(70 * kMiB) + "\n");
  write("sys/fs/cgroup/system.slice/memory.stat",
        "anon 5\nactive_file 7\ninactive_file " + std::to_string(10 * kMiB) + "\n");
  write("sys/fs/cgroup/system.slice/hotkvd.service/memory.max", "max\n");
  const auto tightest = room();
  ASSERT_TRUE(tightest.has_value()) << tightest.error().message();
  EXPECT_EQ(tightest->available_bytes, 40 * kMiB);
  EXPECT_TRUE(tightest->limit.ends_with("/sys/fs/cgroup/system.slice")) << tightest->limit;
  EXPECT_EQ(room(0, 16 * kMiB)->available_bytes, 24 * kMiB);

  write("sys/fs/cgroup/system.slice/hotkvd.service/memory.high", std::to_string(8 * kMiB) + "\n");
  write("sys/fs/cgroup/system.slice/hotkvd.service/memory.current", std::to_string(kMiB) + "\n");
  EXPECT_EQ(room()->available_bytes, 7 * kMiB);
}

TEST_F(HeadroomFiles, UsageAboveTheLimitIsNoRoom) {
  mount_version2("/", "/a");
  write("sys/fs/cgroup/a/memory.max", "1000\n");
  write("sys/fs/cgroup/a/memory.current", "5000\n");
  EXPECT_EQ(room()->available_bytes, 0U);
}

TEST_F(HeadroomFiles, Version1IsReadFromItsMemoryHierarchy) {
  write("proc/self/mountinfo",
        "35 31 0:32 / /sys/fs/cgroup/cpu rw - cgroup cgroup rw,cpu\n"
        "36 31 0:33 / /sys/fs/cgroup/memory rw - cgroup cgroup rw,memory\n"
        "41 31 0:38 / /sys/fs/cgroup/unified rw - cgroup2 cgroup2 rw\n");
  write("proc/self/cgroup", "4:memory:/x/y\n1:cpu:/\n0::/\n");
  write("sys/fs/cgroup/memory/memory.limit_in_bytes", "9223372036854771712\n");
  write("sys/fs/cgroup/memory/memory.usage_in_bytes", "123\n");
  write("sys/fs/cgroup/memory/x/memory.limit_in_bytes", std::to_string(64 * kMiB));
  write("sys/fs/cgroup/memory/x/memory.usage_in_bytes", std::to_string(60 * kMiB));
  write("sys/fs/cgroup/memory/x/memory.stat",
        "inactive_file 1\ntotal_inactive_file " + std::to_string(6 * kMiB) + "\n");
  const auto least = room();
  ASSERT_TRUE(least.has_value()) << least.error().message();
  EXPECT_EQ(least->available_bytes, 10 * kMiB);
}

TEST_F(HeadroomFiles, AContainersMountShowsOnlyItsSubtree) {
  mount_version2("/docker/abc", "/docker/abc/app");
  write("sys/fs/cgroup/app/memory.max", std::to_string(9 * kMiB));
  write("sys/fs/cgroup/app/memory.current", "0");
  EXPECT_EQ(room()->available_bytes, 9 * kMiB);

  mount_version2("/docker/abc", "/docker/abc");
  write("sys/fs/cgroup/memory.max", std::to_string(5 * kMiB));
  write("sys/fs/cgroup/memory.current", "0");
  EXPECT_EQ(room()->available_bytes, 5 * kMiB);

  mount_version2("/docker/abc", "/somewhere/else");
  EXPECT_EQ(room()->available_bytes, 5 * kMiB);
}

TEST_F(HeadroomFiles, WhatCannotBeUnderstoodIsAnErrorAndNoGuess) {
  mount_version2("/", "/a");
  write("sys/fs/cgroup/a/memory.max", "plenty\n");
  EXPECT_FALSE(room().has_value());
  write("sys/fs/cgroup/a/memory.max", "1000\n");
  const auto without_usage = room();
  ASSERT_FALSE(without_usage.has_value());
  EXPECT_NE(without_usage.error().object.find("memory.current"), std::string::npos);
  write("sys/fs/cgroup/a/memory.current", "0\n");
  EXPECT_TRUE(room().has_value());
  write("proc/meminfo", "MemTotal: 1 kB\n");
  EXPECT_FALSE(room().has_value());
}

TEST(Headroom, ReadsThisMachine) {
  const auto room = Headroom({.machine_reserve_bytes = 0, .cgroup_reserve_bytes = 0}).room();
  ASSERT_TRUE(room.has_value()) << room.error().message();
  EXPECT_GT(room->available_bytes, 0U);
}

}  // namespace
}  // namespace hotkv::platform
