#pragma once
// Which session of a trace a request continues.

#include <cstdint>
#include <span>
#include <unordered_map>
#include <vector>

namespace hotkv::bench {

// A session is a chain of full blocks. A request continues the session whose whole chain is the
// longest prefix of its own full blocks, and the chain becomes the request's; else it opens a new
// session. A session without a full block is continued by nobody.
class SessionBook {
 public:
  struct Turn {
    std::uint32_t session;       // counted from 0
    std::uint32_t known_blocks;  // of the request, those that the session had already
    std::uint32_t blocks;        // of the request: the session's from now on
  };
  // `block_ids`: the full blocks of the next request, in order of arrival.
  [[nodiscard]] Turn next(std::span<const std::uint64_t> block_ids);
  [[nodiscard]] std::uint32_t sessions() const { return sessions_; }

 private:
  // By the id of a chain's last block: an id stands for all blocks before it, too.
  std::unordered_map<std::uint64_t, std::uint32_t> session_by_tip_;
  std::uint32_t sessions_ = 0;
};

}  // namespace hotkv::bench
