#pragma once
// The other end of ServiceManager: what a parent does that keeps descriptors for the daemon, as
// systemd does. For `hotkvd --supervise`, and for tests.

#include <cstddef>
#include <expected>
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

  // The variables LISTEN_FDS and LISTEN_FDNAMES for a child that gets these descriptors;
  // LISTEN_PID, the child's own, it has to set itself. Empty if there are none.
  [[nodiscard]] std::vector<std::string> variables() const;

 private:
  void store(const std::string& name, std::vector<UniqueFd> fds);

  std::size_t max_;
  std::vector<KeptDescriptor> kept_;
};

// In the child, between fork and exec: places the descriptors where LISTEN_FDS expects them, in
// this order, and lets them live on in the program. `fds` is overwritten. System calls only.
// Returns false where one failed.
[[nodiscard]] bool place_kept_descriptors(int* fds, std::size_t count);

}  // namespace hotkv::platform
