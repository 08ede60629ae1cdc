#include "daemon/platform/control_listener.hpp"

#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include <cerrno>
#include <string_view>
#include <utility>

#include "shared/seqpacket.hpp"

namespace hotkv::platform {
namespace {

std::unexpected<Error> refuse(ErrorCode code, const std::string& path, std::string cause) {
  return std::unexpected(Error{code, "listen on", path, std::move(cause), 0});
}

std::unexpected<Error> failed(std::string operation, const std::string& path) {
  return std::unexpected(system_error(std::move(operation), path));
}

std::string_view type_name(mode_t mode) {
  switch (mode & S_IFMT) {
    case S_IFREG: return "a regular file";
    case S_IFDIR: return "a directory";
    case S_IFLNK: return "a symbolic link";
    case S_IFIFO: return "a pipe";
    case S_IFSOCK: return "a socket";
    default: return "a device";
  }
}

// In a directory that any user may write and whose files any user may rename, no mode of ours means
// anything.
std::expected<void, Error> check_directory(const std::string& path) {
  const std::size_t slash = path.rfind('/');
  const std::string directory =
      slash == std::string::npos ? "." : path.substr(0, slash == 0 ? 1 : slash);
  struct stat status {};
  if (::stat(directory.c_str(), &status) != 0) {
    if (errno != ENOENT) return failed("look at directory", directory);
    return refuse(ErrorCode::configuration_error, path,
                  "the directory " + directory + " does not exist");
  }
  if (!S_ISDIR(status.st_mode)) {
    return refuse(ErrorCode::configuration_error, path, directory + " is not a directory");
  }
  if ((status.st_mode & S_IWOTH) != 0 && (status.st_mode & S_ISVTX) == 0) {
    return refuse(ErrorCode::configuration_error, path,
                  "any user may replace files in the directory " + directory);
  }
  return {};
}

std::expected<UniqueFd, Error> take_lock(const std::string& path) {
  const std::string lock_path = path + ".lock";
  UniqueFd lock(
      ::open(lock_path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK, 0600));
  if (!lock) return failed("open", lock_path);
  while (::flock(lock.get(), LOCK_EX | LOCK_NB) != 0) {
    if (errno == EINTR) continue;
    if (errno != EWOULDBLOCK) return failed("lock", lock_path);
    return refuse(ErrorCode::address_in_use, path, "another daemon holds " + lock_path);
  }
  return lock;
}

// Whether the socket file at the address is left over from a dead process: nothing is bound to it,
// or what is bound does not listen. Anything but that plain refusal counts as alive, a socket of
// another type (EPROTOTYPE) and a full queue (EAGAIN) too.
std::expected<bool, Error> is_dead(const sockaddr_un& address, int type) {
  UniqueFd probe(::socket(AF_UNIX, type | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  if (!probe) return failed("make a socket for", address.sun_path);
  const auto* generic = reinterpret_cast<const sockaddr*>(&address);
  return ::connect(probe.get(), generic, sizeof address) != 0 && errno == ECONNREFUSED;
}

// Makes sure that nothing is at the path, or says what is. Under the lock.
std::expected<void, Error> clear_path(const std::string& path, const sockaddr_un& address,
                                      int type) {
  struct stat status {};
  if (::lstat(path.c_str(), &status) != 0) {
    if (errno == ENOENT) return {};
    return failed("look at", path);
  }
  if (!S_ISSOCK(status.st_mode)) {
    return refuse(ErrorCode::address_in_use, path,
                  "the path is " + std::string(type_name(status.st_mode)) + ", not a socket");
  }
  const auto dead = is_dead(address, type);
  if (!dead) return std::unexpected(dead.error());
  if (!*dead) return refuse(ErrorCode::address_in_use, path, "a live process has the socket");
  if (status.st_uid != ::geteuid()) {
    return refuse(ErrorCode::address_in_use, path,
                  "a left-over socket of uid " + std::to_string(status.st_uid) + ", this is uid " +
                      std::to_string(::geteuid()));
  }
  if (::unlink(path.c_str()) != 0) return failed("remove the left-over socket", path);
  return {};
}

// bind() creates the file with mode 0777 less the umask, so this umask is the wanted mode. A chmod
// afterwards would leave a moment in which anybody may come in.
int bind_with_mode(int fd, const sockaddr_un& address, mode_t mode) {
  const mode_t previous = ::umask(static_cast<mode_t>(0777 & ~mode));
  const int result = ::bind(fd, reinterpret_cast<const sockaddr*>(&address), sizeof address);
  const int os_errno = errno;
  ::umask(previous);
  errno = os_errno;
  return result;
}

}  // namespace

std::expected<ListeningSocket, Error> ListeningSocket::open(const std::string& path,
                                                            const ListenerOptions& options) {
  const auto address = socket_address(path);
  if (!address) return std::unexpected(address.error());
  if (auto sound = check_directory(path); !sound) return std::unexpected(sound.error());
  auto lock = take_lock(path);
  if (!lock) return std::unexpected(std::move(lock.error()));
  if (auto clear = clear_path(path, *address, options.type); !clear) {
    return std::unexpected(std::move(clear.error()));
  }

  UniqueFd socket(::socket(AF_UNIX, options.type | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  if (!socket) return failed("make a socket for", path);
  if (bind_with_mode(socket.get(), *address, options.mode) != 0) return failed("bind", path);
  struct stat status {};
  if (::lstat(path.c_str(), &status) != 0) return failed("look at", path);
  ListeningSocket listener(path, std::move(*lock), std::move(socket), status.st_dev, status.st_ino);
  if (::listen(listener.fd(), options.backlog) != 0) return failed("listen on", path);
  return listener;
}

ListeningSocket::ListeningSocket(std::string path, UniqueFd lock, UniqueFd socket, dev_t device,
                                 ino_t inode)
    : path_(std::move(path)),
      lock_(std::move(lock)),
      socket_(std::move(socket)),
      device_(device),
      inode_(inode) {}

ListeningSocket& ListeningSocket::operator=(ListeningSocket&& other) noexcept {
  if (this == &other) return *this;
  remove_path();
  path_ = std::move(other.path_);
  socket_ = std::move(other.socket_);
  lock_ = std::move(other.lock_);
  device_ = other.device_;
  inode_ = other.inode_;
  return *this;
}

ListeningSocket::~ListeningSocket() {
  remove_path();
}

void ListeningSocket::remove_path() {
  if (!lock_) return;
  struct stat status {};
  if (::lstat(path_.c_str(), &status) != 0) return;
  if (status.st_dev == device_ && status.st_ino == inode_) ::unlink(path_.c_str());
}

}  // namespace hotkv::platform
