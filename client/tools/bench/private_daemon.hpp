#pragma once
// A hotkvd of the benchmark's own, in a folder of its own.

#include <cstdint>
#include <expected>
#include <filesystem>
#include <string>
#include <vector>

#include <sys/types.h>

#include <hotkv/error.hpp>

namespace hotkv::bench {

// Started beside the running program, ended with this object (SIGTERM, and SIGKILL after a while).
class PrivateDaemon {
 public:
  // `flags` as hotkvd takes them. Returns when it answers.
  // Errors: system_error; configuration_error with its words, where it did not come up.
  [[nodiscard]] static std::expected<PrivateDaemon, Error> start(std::vector<std::string> flags);
  PrivateDaemon(PrivateDaemon&& other) noexcept;
  PrivateDaemon& operator=(PrivateDaemon&&) = delete;
  ~PrivateDaemon();

  [[nodiscard]] std::string control_path() const { return (folder_ / "control.sock").string(); }
  [[nodiscard]] std::string admin_path() const { return (folder_ / "admin.sock").string(); }
  [[nodiscard]] pid_t pid() const { return pid_; }
  // The body of GET /status. Errors: admin_get's.
  [[nodiscard]] std::expected<std::string, Error> status() const;
  // The body of GET /contexts, up to 10,000 of them.
  [[nodiscard]] std::expected<std::string, Error> contexts() const;
  // The body of GET /verify.
  [[nodiscard]] std::expected<std::string, Error> verify() const;

 private:
  PrivateDaemon() = default;
  std::filesystem::path folder_;
  pid_t pid_ = -1;
};

}  // namespace hotkv::bench
