#pragma once
// `hotkvd --supervise`: a parent that keeps the memory of a daemon, where there is no systemd.

#include <chrono>
#include <cstddef>
#include <string>
#include <vector>

namespace hotkv {

// Runs this program as a child with `arguments`, and keeps what it gives into the descriptor store.
// A child that crashes is started anew with all of it after restart_delay. SIGTERM, SIGINT and
// SIGHUP are passed on. Ends when the child ends by itself (0, or an exit code that a restart would
// not change: configuration, address, permission), with its exit code; or with 1 after 8 starts in
// a minute. The memory is gone when this process is; if it is killed, the child gets SIGTERM.
// Clients reconnect over a restart as under systemd.
//
// `descriptors_max`: what it keeps at most, as FileDescriptorStoreMax= of a unit.
[[nodiscard]] int supervise(std::vector<std::string> arguments, std::size_t descriptors_max);

// Doubled with each start of the last minute, so that a short shortage (of processes, say) is
// outlived by the starts there are: 0.1, 0.2, 0.4, 0.8 s, then 1 s each.
[[nodiscard]] std::chrono::milliseconds restart_delay(std::size_t starts_of_the_last_minute);

}  // namespace hotkv
