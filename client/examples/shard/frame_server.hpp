#pragma once
// The answering end of conversations in frames.

#include <expected>
#include <filesystem>
#include <functional>
#include <string>

#include <hotkv/error.hpp>

namespace hotkv::shard {

// Answers frames of up to 64 clients, one frame after the other, until SIGTERM or SIGINT. A frame
// whose client has hung up is not answered: it may be older than one that was answered meanwhile.
//
// The socket file is its user's alone. One that a dead server left behind is replaced; two servers
// that are started at one path at the same moment are not kept apart.
// Errors: address_in_use if a live server or another file is there, system_error, invalid_argument.
[[nodiscard]] std::expected<void, Error> serve_frames(
    const std::filesystem::path& path, const std::function<void()>& on_listening,
    const std::function<std::string(const std::string&)>& answer);

}  // namespace hotkv::shard
