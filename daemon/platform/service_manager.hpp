#pragma once
// What the daemon tells systemd about itself, and what it gives it to keep. Without a service
// manager every call does nothing.

#include <chrono>
#include <deque>
#include <expected>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include <hotkv/error.hpp>

#include "daemon/platform/memory_file.hpp"
#include "shared/seqpacket.hpp"
#include "shared/unique_fd.hpp"

namespace hotkv::platform {

// A descriptor that the service manager kept from an earlier daemon, and the name it has there.
struct KeptDescriptor {
  std::string name;
  UniqueFd fd;
};

// One thread's. No call blocks: what the manager does not take at once waits here and goes out with
// the next message or flush(), in order.
class ServiceManager {
 public:
  ServiceManager() = default;
  ServiceManager(const ServiceManager&) = delete;
  ServiceManager& operator=(const ServiceManager&) = delete;

  // Whether a service manager waits for our notifications ($NOTIFY_SOCKET).
  [[nodiscard]] bool running_under_systemd() const;

  // Start-up is over; `status` is the line that `systemctl status` shows. Once the kept memory is
  // adopted or refused, not before: clients are let in on it. Errors: system_error.
  [[nodiscard]] std::expected<void, Error> ready(std::string_view status);
  [[nodiscard]] std::expected<void, Error> stopping();

  // The time within which the manager wants a ping, if it does; ping at a third of it, from the
  // event loop, so that a hung loop is noticed. Errors: system_error (the variables make no sense).
  [[nodiscard]] std::expected<std::optional<std::chrono::microseconds>, Error> watchdog_interval()
      const;
  [[nodiscard]] std::expected<void, Error> ping();

  // Sends what waits, as far as the manager takes it; now and then. Errors: system_error.
  [[nodiscard]] std::expected<void, Error> flush();
  [[nodiscard]] bool has_waiting() const { return !waiting_.empty(); }

  // ---- the descriptor store ---------------------------------------------------------------------

  // What was kept for this process. Once: the environment that says so is cleared. The manager
  // keeps its copies. Errors: system_error.
  [[nodiscard]] static std::expected<std::vector<KeptDescriptor>, Error> take_kept();
  // Gives files into the store under one name. What is sent is safe even if this process dies the
  // next moment; whether it is kept shows later, by is_kept(): a manager whose limit is reached (or
  // 0) drops descriptors without a word. Errors: system_error, session_busy (kept already).
  [[nodiscard]] std::expected<void, Error> keep(const std::string& name,
                                                std::span<const MemoryFile* const> files);
  // Everything under that name leaves the store.
  [[nodiscard]] std::expected<void, Error> let_go(const std::string& name);
  // What is sent is a description of its own that holds a lock on the file's first byte. The lock
  // stands as long as somebody holds that description: this process while the message waits here,
  // the kernel while it is under way, then the manager or nobody. So ask some time after it went
  // out. (A client can lock that byte of its own shard's files, and lie to itself.)
  [[nodiscard]] static std::expected<bool, Error> is_kept(const MemoryFile& file);

 private:
  struct Message {
    std::string state;
    std::vector<UniqueFd> fds;
  };
  [[nodiscard]] static std::expected<FrameOutcome, Error> try_to_send(const Message& message);
  [[nodiscard]] std::expected<void, Error> send(std::string state, std::vector<UniqueFd> fds = {});

  std::deque<Message> waiting_;
};

}  // namespace hotkv::platform
