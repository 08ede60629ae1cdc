#include "daemon/platform/descriptor_store.hpp"

#include <fcntl.h>
#include <sys/socket.h>
#include <systemd/sd-daemon.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <charconv>
#include <utility>

#include "shared/seqpacket.hpp"

extern char** environ;

namespace hotkv::platform {
namespace {

constexpr std::size_t kPidDigitsMax = 10;

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

ProgramWithKept::ProgramWithKept(const DescriptorStore& store, std::vector<std::string> arguments,
                                 std::vector<std::string> variables)
    : arguments_(std::move(arguments)), variables_(std::move(variables)) {
  std::string names;
  for (const KeptDescriptor& each : store.kept()) {
    fds_.push_back(each.fd.get());
    names += (names.empty() ? "" : ":") + each.name;
  }
  if (!fds_.empty()) {
    variables_.push_back("LISTEN_FDS=" + std::to_string(fds_.size()));
    variables_.push_back("LISTEN_FDNAMES=" + names);
  }
  const std::string pid_variable = "LISTEN_PID=";
  variables_.push_back(pid_variable + std::string(kPidDigitsMax, ' '));
  pid_digits_ = variables_.back().data() + pid_variable.size();
  for (std::string& argument : arguments_) argv_.push_back(argument.data());
  for (std::string& variable : variables_) envp_.push_back(variable.data());
  argv_.push_back(nullptr);
  envp_.push_back(nullptr);
}

void ProgramWithKept::become(const char* path) {
  // First out of the way of the numbers they are to have, then each to its own.
  const int free_from = SD_LISTEN_FDS_START + static_cast<int>(fds_.size());
  for (int& fd : fds_) {
    fd = ::fcntl(fd, F_DUPFD, free_from);
    if (fd < 0) return;
  }
  for (std::size_t i = 0; i < fds_.size(); ++i) {
    if (::dup2(fds_[i], SD_LISTEN_FDS_START + static_cast<int>(i)) < 0) return;
    ::close(fds_[i]);
  }
  *std::to_chars(pid_digits_, pid_digits_ + kPidDigitsMax, ::getpid()).ptr = '\0';
  ::execve(path, argv_.data(), envp_.data());
}

std::vector<std::string> environment_without(std::initializer_list<std::string_view> prefixes) {
  std::vector<std::string> variables;
  for (char** variable = environ; *variable != nullptr; ++variable) {
    const std::string_view text(*variable);
    const bool is_left_out = std::ranges::any_of(
        prefixes, [&](std::string_view prefix) { return text.starts_with(prefix); });
    if (!is_left_out) variables.emplace_back(text);
  }
  return variables;
}

}  // namespace hotkv::platform
