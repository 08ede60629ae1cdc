#pragma once
// The other end of ServiceManager: what a parent does that keeps descriptors for the daemon, as
// systemd does. For `hotkvd --supervise`, and for tests.

#include <cstddef>
#include <expected>
#include <initializer_list>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include <hotkv/error.hpp>

#include "daemon/platform/service_manager.hpp"
#include "shared/unique_fd.hpp"

namespace hotkv::platform {

// A datagram socket at a path, for NOTIFY_SOCKET. Errors: invalid_argument (the path),
// system_error.
[[nodiscard]] std::expected<UniqueFd, Error> listen_for_notifications(const std::string& path);

// One thread's.
class DescriptorStore {
 public:
  // Keeps so many descriptors; what comes beyond is closed without a word, as systemd does.
  explicit DescriptorStore(std::size_t descriptors_max) : max_(descriptors_max) {}

  // Takes in one message that is there: stores and removes what it says. The message's text, for
  // whoever waits for READY=1; nothing if none is there. A message that cannot be received, or that
  // makes no sense, is dropped and reads as empty.
  [[nodiscard]] std::optional<std::string> receive(int socket);

  [[nodiscard]] const std::vector<KeptDescriptor>& kept() const { return kept_; }
  // Forgets all of it.
  void clear() { kept_.clear(); }

 private:
  void store(const std::string& name, std::vector<UniqueFd> fds);

  std::size_t max_;
  std::vector<KeptDescriptor> kept_;
};

// A program that a forked child becomes, with what is kept where sd_listen_fds() expects it.
// Made before the fork; the store may be changed after it.
class ProgramWithKept {
 public:
  // `arguments` are argv with the program's name, `variables` all of its environment but LISTEN_*.
  ProgramWithKept(const DescriptorStore& store, std::vector<std::string> arguments,
                  std::vector<std::string> variables);
  ProgramWithKept(const ProgramWithKept&) = delete;
  ProgramWithKept& operator=(const ProgramWithKept&) = delete;

  // In the child: system calls only. Returns where one of them failed.
  void become(const char* path);

 private:
  std::vector<std::string> arguments_, variables_;
  std::vector<char*> argv_, envp_;
  std::vector<int> fds_;
  char* pid_digits_ = nullptr;  // of LISTEN_PID, which is the child's own
};

// The variables of this process but those whose names begin with one of these.
[[nodiscard]] std::vector<std::string> environment_without(
    std::initializer_list<std::string_view> prefixes);

}  // namespace hotkv::platform
