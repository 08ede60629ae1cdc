#include "client/tools/bench/session_book.hpp"

namespace hotkv::bench {

SessionBook::Turn SessionBook::next(std::span<const std::uint64_t> block_ids) {
  const auto blocks = static_cast<std::uint32_t>(block_ids.size());
  for (std::uint32_t known = blocks; known > 0; --known) {
    const auto found = session_by_tip_.find(block_ids[known - 1]);
    if (found == session_by_tip_.end()) continue;
    const std::uint32_t session = found->second;
    session_by_tip_.erase(found);
    session_by_tip_[block_ids.back()] = session;
    return {session, known, blocks};
  }
  const std::uint32_t session = sessions_++;
  if (blocks > 0) session_by_tip_[block_ids.back()] = session;
  return {session, 0, blocks};
}

}  // namespace hotkv::bench
