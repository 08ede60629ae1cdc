#pragma once
// Where the rows of a token range lie: one function for views and writers.

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>

#include <hotkv/types.hpp>

#include "client/library/attachment.hpp"

namespace hotkv::client {

enum class Tensor { keys, values };

// Tokens [first, first + count) of one chunk; count is not 0.
struct Piece {
  std::uint32_t chunk_ordinal;  // in its chain
  std::uint32_t first;
  std::uint32_t count;
};

// How many pieces the tokens [position, position + size) lie in, and the one with number `index`.
[[nodiscard]] inline std::size_t piece_count(const Geometry& geometry, TokenCount position,
                                             TokenCount size) {
  if (size.value() == 0) return 0;
  return geometry.chunks_for(TokenCount{position.value() + size.value()}) -
         position.value() / geometry.chunk_tokens;
}
// Nothing if there is no such piece.
[[nodiscard]] inline std::optional<Piece> piece_at(const Geometry& geometry, TokenCount position,
                                                   TokenCount size, std::size_t index) {
  if (index >= piece_count(geometry, position, size)) return std::nullopt;
  const std::uint32_t tokens = geometry.chunk_tokens;
  const std::uint32_t end = position.value() + size.value();  // both at most 2^31 - 1
  const auto ordinal = position.value() / tokens + static_cast<std::uint32_t>(index);
  const std::uint32_t first = index == 0 ? position.value() % tokens : 0;
  // Compared by subtraction: the end of the last chunk may lie beyond 32 bits.
  const std::uint32_t left = end - ordinal * tokens;
  return Piece{ordinal, first, (left < tokens ? left : tokens) - first};
}

[[nodiscard]] inline std::uint64_t row_bytes(const Geometry& geometry, Tensor tensor) {
  return tensor == Tensor::keys ? geometry.key_row_bytes : geometry.value_row_bytes;
}

// The rows of one layer in a piece. `layer_index` counts from the first owned layer.
[[nodiscard]] inline std::span<std::byte> rows_of(const Attachment& attachment, const Chain& chain,
                                                  const Piece& piece, std::uint32_t layer_index,
                                                  Tensor tensor) {
  const Geometry& geometry = attachment.geometry();
  const std::uint64_t bytes = row_bytes(geometry, tensor);
  const ByteOffset start = tensor == Tensor::keys ? geometry.keys_offset(layer_index)
                                                  : geometry.values_offset(layer_index);
  std::byte* chunk = attachment.chunk(chain.chunks[piece.chunk_ordinal]);
  return {chunk + start.value() + piece.first * bytes, piece.count * bytes};
}

// The layer's number from the first owned one; nothing if it is not owned.
[[nodiscard]] inline std::optional<std::uint32_t> layer_index(const Attachment& attachment,
                                                              std::uint32_t layer) {
  const LayerRange& layers = attachment.recipe().fields().layers;
  if (layer < layers.first || layer > layers.last) return std::nullopt;
  return layer - layers.first;
}

}  // namespace hotkv::client
