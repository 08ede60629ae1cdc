#pragma once
// The pattern in whole writers and views.

#include <cstdint>
#include <string_view>

#include <hotkv/view.hpp>
#include <hotkv/writer.hpp>

namespace hotkv::bench {

// Fills tokens [first, end) of a writer: all layers, K and V.
void fill_tokens(Writer& writer, std::string_view session, std::uint64_t epoch, std::uint32_t first,
                 std::uint32_t end, std::uint32_t version = 0);
// Bytes of a view that are not the pattern's of version 0.
[[nodiscard]] std::uint64_t wrong_bytes_of(const View& view, std::string_view session,
                                           std::uint64_t epoch);

}  // namespace hotkv::bench
