#include "daemon/platform/descriptor_store.hpp"

#include <fcntl.h>
#include <sys/socket.h>
#include <systemd/sd-daemon.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <utility>

#include "shared/seqpacket.hpp"

namespace hotkv::platform {
namespace {

// The value of a line "NAME=value" of a message; nothing if it has none.
std::optional<std::string> value_of(std::string_view message, std::string_view name) {
  while (!message.empty()) {
    const std::size_t end = std::min(message.find('\n'), message.size());
    const std::string_view line = message.substr(0, end);
    if (line.starts_with(name) && line.substr(name.size()).starts_with('=')) {
      return std::string(line.substr(name.size() + 1));
    }
    message.remove_prefix(std::min(end + 1, message.size()));
  }
  return std::nullopt;
}

}  // namespace

std::expected<UniqueFd, Error> listen_for_notifications(const std::string& path) {
  const auto address = socket_address(path);
  if (!address) return std::unexpected(address.error());
  UniqueFd fd(::socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  if (!fd) return std::unexpected(system_error("make a socket for", path));
  const auto* generic = reinterpret_cast<const sockaddr*>(&*address);
  if (::bind(fd.get(), generic, sizeof *address) != 0) {
    return std::unexpected(system_error("bind", path));
  }
  return fd;
}

std::optional<std::string> DescriptorStore::receive(int socket) {
  std::array<char, 4096> buffer;
  ReceivedDescriptors received;
  const auto frame = receive_frame(socket, std::as_writable_bytes(std::span(buffer)), received);
  if (!frame) return std::string();
  if (frame->outcome != FrameOutcome::ok) return std::nullopt;
  std::string message(buffer.data(), frame->size_bytes);
  const std::string name = value_of(message, "FDNAME").value_or("stored");
  if (value_of(message, "FDSTORE") == "1") {
    std::vector<UniqueFd> fds;
    for (std::size_t i = 0; i < received.count; ++i) fds.push_back(std::move(received.fds[i]));
    store(name, std::move(fds));
  }
  if (value_of(message, "FDSTOREREMOVE") == "1") {
    std::erase_if(kept_, [&](const KeptDescriptor& each) { return each.name == name; });
  }
  return message;
}

void DescriptorStore::store(const std::string& name, std::vector<UniqueFd> fds) {
  for (UniqueFd& fd : fds) {
    if (kept_.size() < max_) kept_.push_back({name, std::move(fd)});
  }
}

std::vector<std::string> DescriptorStore::variables() const {
  if (kept_.empty()) return {};
  std::string names;
  for (const KeptDescriptor& each : kept_) names += (names.empty() ? "" : ":") + each.name;
  return {"LISTEN_FDS=" + std::to_string(kept_.size()), "LISTEN_FDNAMES=" + names};
}

bool place_kept_descriptors(int* fds, std::size_t count) {
  // First out of the way of the numbers they are to have, then each to its own.
  const int free_from = SD_LISTEN_FDS_START + static_cast<int>(count);
  for (std::size_t i = 0; i < count; ++i) {
    fds[i] = ::fcntl(fds[i], F_DUPFD, free_from);
    if (fds[i] < 0) return false;
  }
  for (std::size_t i = 0; i < count; ++i) {
    const int number = SD_LISTEN_FDS_START + static_cast<int>(i);
    if (::dup2(fds[i], number) < 0) return false;
    ::close(fds[i]);
  }
  return true;
}

}  // namespace hotkv::platform
