#include "daemon/platform/service_manager.hpp"

#include <sys/socket.h>
#include <systemd/sd-daemon.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <utility>

#include "daemon/platform/page_lock.hpp"
#include "shared/seqpacket.hpp"

namespace hotkv::platform {
namespace {

// Locked by the description in the store. No client's page lies there.
constexpr ByteRange kKeptMark{0, 1};
// Messages that wait because the manager reads none. A shard needs two in its life.
constexpr std::size_t kWaitingMax = 1024;

const char* notify_socket() {
  const char* path = std::getenv("NOTIFY_SOCKET");
  return path != nullptr && *path != '\0' ? path : nullptr;
}

void free_list(char** names) {
  if (names == nullptr) return;
  for (char** name = names; *name != nullptr; ++name) std::free(*name);
  std::free(names);
}

// A socket that sends to the manager. "@name" is an abstract one.
std::expected<UniqueFd, Error> connect_to(std::string path) {
  UniqueFd fd(::socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  if (!fd) return std::unexpected(system_error("make a socket for", "service manager"));
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  if (path.size() > kSocketPathBytesMax) {
    return std::unexpected(Error{ErrorCode::invalid_argument, "connect to", "service manager",
                                 "NOTIFY_SOCKET is too long", 0});
  }
  std::memcpy(address.sun_path, path.data(), path.size());
  if (path.front() == '@') address.sun_path[0] = '\0';
  const auto size = static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + path.size() +
                                           (path.front() == '@' ? 0 : 1));
  if (::connect(fd.get(), reinterpret_cast<const sockaddr*>(&address), size) != 0) {
    return std::unexpected(system_error("connect to", "service manager"));
  }
  return fd;
}

}  // namespace

bool ServiceManager::running_under_systemd() const {
  return notify_socket() != nullptr;
}

std::expected<FrameOutcome, Error> ServiceManager::try_to_send(const Message& message) {
  const auto socket = connect_to(notify_socket());
  if (!socket) return std::unexpected(socket.error());
  std::vector<int> fds;
  for (const UniqueFd& fd : message.fds) fds.push_back(fd.get());
  return send_frame(socket->get(), std::as_bytes(std::span(message.state)), fds);
}

std::expected<void, Error> ServiceManager::send(std::string state, std::vector<UniqueFd> fds) {
  if (!running_under_systemd()) return {};
  if (waiting_.size() >= kWaitingMax) {
    return std::unexpected(
        Error{ErrorCode::too_many_waiting, "notify", "service manager", "it reads no messages", 0});
  }
  waiting_.push_back({std::move(state), std::move(fds)});
  return flush();
}

std::expected<void, Error> ServiceManager::flush() {
  while (!waiting_.empty()) {
    const auto sent = try_to_send(waiting_.front());
    if (sent && *sent == FrameOutcome::would_block) return {};
    waiting_.pop_front();
    if (!sent) return std::unexpected(sent.error());
    if (*sent == FrameOutcome::closed) {
      return std::unexpected(
          Error{ErrorCode::system_error, "notify", "service manager", "it is gone", 0});
    }
  }
  return {};
}

std::expected<void, Error> ServiceManager::ready(std::string_view status) {
  std::string line(status);
  std::replace(line.begin(), line.end(), '\n', ' ');  // a line end would begin another variable
  return send("READY=1\nSTATUS=" + line);
}

std::expected<void, Error> ServiceManager::stopping() {
  return send("STOPPING=1");
}

std::expected<std::optional<std::chrono::microseconds>, Error> ServiceManager::watchdog_interval()
    const {
  std::uint64_t interval_us = 0;
  const int result = ::sd_watchdog_enabled(0, &interval_us);
  if (result < 0) {
    return std::unexpected(system_error("read the watchdog of", "service manager", -result));
  }
  if (result == 0) return std::nullopt;
  return std::chrono::microseconds(interval_us);
}

std::expected<void, Error> ServiceManager::ping() {
  // Behind messages that it does not take it would only come late, and many of them at once.
  if (waiting_.empty()) return send("WATCHDOG=1");
  return flush();
}

std::expected<std::vector<KeptDescriptor>, Error> ServiceManager::take_kept() {
  char** names = nullptr;
  const int count = ::sd_listen_fds_with_names(1, &names);
  if (count < 0) {
    return std::unexpected(system_error("take kept descriptors from", "service manager", -count));
  }
  std::vector<KeptDescriptor> kept;
  for (int i = 0; i < count; ++i) {
    kept.push_back({names != nullptr ? names[i] : "", UniqueFd(SD_LISTEN_FDS_START + i)});
  }
  free_list(names);
  return kept;
}

std::expected<void, Error> ServiceManager::keep(const std::string& name,
                                                std::span<const MemoryFile* const> files) {
  if (!running_under_systemd()) return {};
  std::vector<UniqueFd> descriptions;
  for (const MemoryFile* file : files) {
    auto description = lock_range(*file, kKeptMark);
    if (!description) return std::unexpected(std::move(description.error()));
    descriptions.push_back(*std::move(description));
  }
  // Not polled: a memory file has no hang-up that could end its keeping.
  return send("FDSTORE=1\nFDPOLL=0\nFDNAME=" + name, std::move(descriptions));
}

std::expected<void, Error> ServiceManager::let_go(const std::string& name) {
  return send("FDSTOREREMOVE=1\nFDNAME=" + name);
}

std::expected<bool, Error> ServiceManager::is_kept(const MemoryFile& file) {
  return is_range_locked(file.fd(), kKeptMark);
}

}  // namespace hotkv::platform
