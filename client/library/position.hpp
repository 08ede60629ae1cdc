#pragma once
// Where a context stands, as the daemon said and this side checked.

#include <cstdint>
#include <expected>
#include <string>

#include <hotkv/error.hpp>
#include <hotkv/types.hpp>

#include "shared/geometry.hpp"
#include "shared/layout.hpp"
#include "shared/protocol.hpp"
#include "shared/words.hpp"

namespace hotkv::client {

struct Position {
  SlotIndex slot;
  Generation generation;
  Tip tip = Tip::free();
  TokenCount length;    // published, when the daemon answered
  TokenCount writable;  // tokens [length, writable) may be written in this generation
};

// Errors: protocol_error naming the number that cannot be.
[[nodiscard]] inline std::expected<Position, Error> check_position(
    const protocol::OperationResult& untrusted_result, const Capacities& capacities) {
  const auto refuse = [](const char* what, std::uint32_t value) {
    return std::unexpected(Error{ErrorCode::protocol_error, "read", "reply",
                                 std::string(what) + " " + std::to_string(value) + " cannot be"});
  };
  const auto& r = untrusted_result;
  const Tip tip = Tip::from_bits(r.tip);
  if (r.slot >= capacities.slot_count) return refuse("slot", r.slot);
  if (tip.is_free() || (tip.is_chunk() && tip.chunk().value() >= capacities.chunk_count)) {
    return refuse("tip", r.tip);
  }
  if (r.writable_tokens > kContextTokensMax || (!tip.is_chunk() && r.writable_tokens != 0)) {
    return refuse("writable", r.writable_tokens);
  }
  if (r.length_tokens > r.writable_tokens) return refuse("length", r.length_tokens);
  return Position{SlotIndex{r.slot}, Generation{r.generation}, tip, TokenCount{r.length_tokens},
                  TokenCount{r.writable_tokens}};
}

}  // namespace hotkv::client
