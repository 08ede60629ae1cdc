#pragma once
// `hotkvd --supervise`: a parent that keeps the memory of a daemon, where there is no systemd.

#include <cstddef>
#include <string>
#include <vector>

namespace hotkv {

// Runs this program as a child with `arguments`, and keeps what it gives into the descriptor store.
// A child that crashes is started anew with all of it after 100 ms, and each time after twice as
// long. SIGTERM, SIGINT and SIGHUP are passed on. Ends when the child ends by itself (0, or an exit
// code that a restart would not change: configuration, address, permission), with its exit code; or
// with 1 after 8 starts in a minute. The memory is gone when this process is; if it is
// killed, the child gets SIGTERM. Clients reconnect over a restart as under systemd.
[[nodiscard]] int supervise(std::vector<std::string> arguments, std::size_t descriptors_max);

}  // namespace hotkv
