#pragma once
// A listening Unix socket at a path, made so that it is the only one and never too open.

#include <sys/socket.h>
#include <sys/types.h>

#include <expected>
#include <string>
#include <utility>

#include <hotkv/error.hpp>

#include "shared/unique_fd.hpp"

namespace hotkv::platform {

struct ListenerOptions {
  int type = SOCK_SEQPACKET;  // SOCK_STREAM for the admin socket
  mode_t mode = 0660;         // of the socket file
  // All the workers of a node may start within one accept; more wait in connect().
  int backlog = 512;
};

// A listening socket, its path, and the lock that makes the path ours.
//
// The lock is an flock on "<path>.lock", taken before anything else and held as long as this lives:
// of several daemons that start at one path exactly one goes on, and what it then finds at the path
// is nobody's in the making. The lock file stays behind on purpose. Were it removed, one daemon
// could hold the removed file's lock while another locks a new file of the same name.
class [[nodiscard]] ListeningSocket {
 public:
  // What is at the path is replaced only if it is a socket of this user to which nobody listens.
  // Call before other threads create files: the process's umask is narrowed for a moment, so that
  // the path is born with its mode and never seen with a wider one.
  // Errors: address_in_use (a live daemon, or something that is not a dead socket of ours; it is
  // named and left alone), configuration_error (the directory is missing or lets any user replace
  // our files), invalid_argument (the path), system_error.
  [[nodiscard]] static std::expected<ListeningSocket, Error> open(const std::string& path,
                                                                  const ListenerOptions& options);

  ListeningSocket(ListeningSocket&& other) noexcept = default;
  ListeningSocket& operator=(ListeningSocket&& other) noexcept;
  // Removes the path if it still is this socket, then lets the lock go.
  ~ListeningSocket();

  [[nodiscard]] int fd() const { return socket_.get(); }
  [[nodiscard]] const std::string& path() const { return path_; }
  // For an event loop that wants to own the descriptor; path and lock stay with this.
  [[nodiscard]] UniqueFd take_fd() { return std::move(socket_); }

 private:
  ListeningSocket(std::string path, UniqueFd lock, UniqueFd socket, dev_t device, ino_t inode);
  void remove_path();

  std::string path_;
  UniqueFd lock_;  // none: moved from, nothing to remove
  UniqueFd socket_;
  dev_t device_ = 0;  // with inode_: which file at the path is ours
  ino_t inode_ = 0;
};

}  // namespace hotkv::platform
