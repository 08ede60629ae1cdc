#pragma once
// Where the daemon listens if nobody says.

#include <string>

namespace hotkv::client {

// See ClientOptions::socket_path.
[[nodiscard]] std::string default_socket_path();

}  // namespace hotkv::client
