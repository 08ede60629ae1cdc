#pragma once
// Where K and V lie during one step of one sequence: cached rows to read, fresh rows to fill.

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include <hotkv/recipe.hpp>
#include <hotkv/types.hpp>
#include <hotkv/view.hpp>
#include <hotkv/writer.hpp>

namespace hotkv::adapter {

// K and V of one layer for positions [0, past + fresh), in pieces, oldest first. A piece is rows
// [tokens][kv_heads][head_dim], contiguous; where one ends and the next begins means nothing. Owns
// no row: the memory is a view's, a writer's, or a runtime's own.
class LayerKv {
 public:
  struct Piece {
    std::uint32_t tokens;
    std::span<const std::byte> keys;
    std::span<const std::byte> values;
  };

  // All past pieces come before the first fresh one. No piece is empty.
  void add_past(std::uint32_t tokens, std::span<const std::byte> keys,
                std::span<const std::byte> values);
  void add_fresh(std::uint32_t tokens, std::span<std::byte> keys, std::span<std::byte> values);

  // Past and fresh pieces: all that attention may look at. A fresh row is read by the step that
  // fills it, before anybody else can see it.
  [[nodiscard]] std::span<const Piece> pieces() const { return pieces_; }
  // The row of the index-th fresh token, to be filled. `index` is below the number of fresh tokens.
  [[nodiscard]] std::span<std::byte> fresh_key(std::uint32_t index) const;
  [[nodiscard]] std::span<std::byte> fresh_value(std::uint32_t index) const;

 private:
  struct Room {
    std::uint32_t tokens;
    std::span<std::byte> keys;
    std::span<std::byte> values;
  };
  std::vector<Piece> pieces_;
  std::vector<Room> rooms_;
};

// The same for all owned layers.
class StepKv {
 public:
  StepKv(LayerRange layers, TokenCount past, TokenCount fresh)
      : layers_(layers), past_(past), fresh_(fresh), kv_(layers.count()) {}
  // Reads in place from `view` (of exactly the tokens before the writer's), fills in place in
  // `writer`. Valid as long as both live.
  [[nodiscard]] static StepKv over(const View& view, Writer& writer);

  [[nodiscard]] LayerRange layers() const { return layers_; }
  // Tokens that are cached: the first fresh token has this absolute position.
  [[nodiscard]] TokenCount past() const { return past_; }
  [[nodiscard]] TokenCount fresh() const { return fresh_; }
  // `layer` as in the model's numbering, one of layers().
  [[nodiscard]] LayerKv& layer(std::uint32_t layer) { return kv_[layer - layers_.first]; }
  [[nodiscard]] const LayerKv& layer(std::uint32_t layer) const {
    return kv_[layer - layers_.first];
  }

 private:
  LayerRange layers_;
  TokenCount past_;
  TokenCount fresh_;
  std::vector<LayerKv> kv_;
};

}  // namespace hotkv::adapter
