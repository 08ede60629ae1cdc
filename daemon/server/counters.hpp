#pragma once
// What the server counts of its connections. All but the two gauges only ever rise.

#include <array>
#include <cstddef>
#include <cstdint>
#include <string_view>

#include <hotkv/error.hpp>

namespace hotkv::server {

// Why a control connection ended. Index of ServerCounters::disconnects.
enum class DisconnectReason : std::uint8_t {
  hung_up,        // the client closed it, ordinarily or by dying
  not_reading,    // its replies filled the queue
  system_error,   // a system call on the socket failed
  client_gone,    // the client's mapping is gone, though its socket is held open
  shutting_down,  // the daemon is ending
};
inline constexpr std::size_t kDisconnectReasons = 5;

[[nodiscard]] constexpr std::string_view to_string(DisconnectReason reason) {
  constexpr std::array<std::string_view, kDisconnectReasons> kNames{
      "hung-up", "not-reading", "system-error", "client-gone", "shutting-down"};
  return kNames[static_cast<std::size_t>(reason)];
}

struct ServerCounters {
  std::uint32_t connections = 0;     // gauge: open control connections
  std::uint32_t waiting_frames = 0;  // gauge: requests whose reply waits for memory
  std::uint64_t connections_accepted = 0;
  std::uint64_t connections_refused = 0;  // over max_connections
  std::uint64_t accept_errors = 0;
  std::uint64_t frames_received = 0;
  std::uint64_t frames_sent = 0;
  std::uint64_t rests = 0;  // of connections that were over their pace
  std::uint64_t admin_requests = 0;
  std::array<std::uint64_t, kDisconnectReasons> disconnects{};
  // Frames refused as a whole, by ErrorCode.
  std::array<std::uint64_t, kErrorCodes> frames_refused{};

  void count_disconnect(DisconnectReason reason) {
    ++disconnects[static_cast<std::size_t>(reason)];
  }
  void count_refused_frame(ErrorCode code) {
    const auto index = static_cast<std::size_t>(code);
    ++frames_refused[index < kErrorCodes ? index : 0];
  }
};

}  // namespace hotkv::server
