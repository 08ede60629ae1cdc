#pragma once
// Recorded traffic of an LLM service.

#include <cstddef>
#include <cstdint>
#include <expected>
#include <filesystem>
#include <string_view>
#include <vector>

#include <hotkv/error.hpp>

namespace hotkv::bench {

struct TraceRequest {
  double arrival_s = 0;  // since the first request
  std::uint32_t input_tokens = 0;
  std::uint32_t output_tokens = 0;
  // One id a block of kBlockTokens tokens of the input, the last block maybe part-filled. Equal ids
  // mean equal tokens up to the end of the block. Empty where the trace says nothing of prefixes.
  std::vector<std::uint64_t> block_ids;

  static constexpr std::uint32_t kBlockTokens = 512;
  // Blocks that are filled to the end: the ones that a later request can continue from.
  [[nodiscard]] std::size_t full_blocks() const {
    const std::size_t full = input_tokens / kBlockTokens;
    return full < block_ids.size() ? full : block_ids.size();
  }
};

// Reads a trace by its form: JSON lines {"timestamp" (ms), "input_length", "output_length",
// "hash_ids"}, or CSV with the header TIMESTAMP,ContextTokens,GeneratedTokens. At most `limit`
// requests, all if it is 0. Errors: system_error; invalid_argument naming the line.
[[nodiscard]] std::expected<std::vector<TraceRequest>, Error> read_trace(
    const std::filesystem::path& path, std::size_t limit = 0);

}  // namespace hotkv::bench
