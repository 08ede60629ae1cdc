#pragma once
// A cgroup with a limit of memory, made by a test for what it starts.

#include <unistd.h>

#include <chrono>
#include <cstdint>
#include <filesystem>
#include <fstream>
#include <memory>
#include <string>
#include <thread>

namespace hotkv::testing {

class MemoryGroup {
 public:
  // At the top of either version's hierarchy. Null where this user or machine cannot make one.
  [[nodiscard]] static std::unique_ptr<MemoryGroup> make(std::uint64_t limit_bytes) {
    static unsigned count = 0;
    const std::string name =
        "hotkv-test-" + std::to_string(::getpid()) + "-" + std::to_string(count++);
    struct Version {
      const char *mount_point, *limit, *kills;
    };
    for (const Version& version :
         {Version{"/sys/fs/cgroup/memory", "memory.limit_in_bytes", "memory.oom_control"},
          Version{"/sys/fs/cgroup", "memory.max", "memory.events"}}) {
      const std::filesystem::path folder = std::filesystem::path(version.mount_point) / name;
      std::error_code failure;
      if (!std::filesystem::create_directory(folder, failure)) continue;
      std::unique_ptr<MemoryGroup> group(new MemoryGroup(folder, version.kills));
      const bool has_a_limit = std::filesystem::exists(folder / version.limit);
      if (has_a_limit && (std::ofstream(folder / version.limit) << limit_bytes).flush()) {
        return group;
      }
    }
    return nullptr;
  }
  // Its members have ended by then.
  ~MemoryGroup() {
    for (int attempt = 0; attempt < 1000 && ::rmdir(folder_.c_str()) != 0; ++attempt) {
      std::this_thread::sleep_for(std::chrono::milliseconds(1));  // one is being taken apart
    }
  }
  MemoryGroup(const MemoryGroup&) = delete;
  MemoryGroup& operator=(const MemoryGroup&) = delete;

  [[nodiscard]] const std::filesystem::path& folder() const { return folder_; }
  // The calling process becomes a member.
  [[nodiscard]] bool join() const {
    return bool((std::ofstream(folder_ / "cgroup.procs") << "0").flush());
  }
  // Shared memory that its members, of now and of before, have taken and nobody has given back.
  [[nodiscard]] std::uint64_t shared_bytes() const { return number("memory.stat", "shmem"); }
  // Members that the kernel has killed for want of memory.
  [[nodiscard]] std::uint64_t kills() const { return number(kills_, "oom_kill"); }

 private:
  MemoryGroup(std::filesystem::path folder, const char* kills)
      : folder_(std::move(folder)), kills_(kills) {}

  [[nodiscard]] std::uint64_t number(const char* file, const std::string& key) const {
    std::ifstream text(folder_ / file);
    std::string word;
    for (std::uint64_t value = 0; text >> word >> value;) {
      if (word == key) return value;
    }
    return 0;
  }

  std::filesystem::path folder_;
  const char* kills_;
};

}  // namespace hotkv::testing
