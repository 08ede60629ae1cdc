#include "client/adapter/step_kv.hpp"

#include "shared/check.hpp"

namespace hotkv::adapter {

void LayerKv::add_past(std::uint32_t tokens, std::span<const std::byte> keys,
                       std::span<const std::byte> values) {
  pieces_.push_back({tokens, keys, values});
}

void LayerKv::add_fresh(std::uint32_t tokens, std::span<std::byte> keys,
                        std::span<std::byte> values) {
  pieces_.push_back({tokens, keys, values});
  rooms_.push_back({tokens, keys, values});
}

std::span<std::byte> LayerKv::fresh_key(std::uint32_t index) const {
  for (const Room& room : rooms_) {
    const std::size_t row_bytes = room.keys.size() / room.tokens;
    if (index < room.tokens) return room.keys.subspan(index * row_bytes, row_bytes);
    index -= room.tokens;
  }
  HOTKV_CHECK(false, "a step asked for the room of a token that it does not run");
  return {};
}

std::span<std::byte> LayerKv::fresh_value(std::uint32_t index) const {
  for (const Room& room : rooms_) {
    const std::size_t row_bytes = room.values.size() / room.tokens;
    if (index < room.tokens) return room.values.subspan(index * row_bytes, row_bytes);
    index -= room.tokens;
  }
  HOTKV_CHECK(false, "a step asked for the room of a token that it does not run");
  return {};
}

StepKv StepKv::over(const View& view, Writer& writer) {
  HOTKV_CHECK(view.length() == writer.position(), "the view ends where the writer begins");
  StepKv kv(writer.layers(), view.length(), writer.size());
  for (std::uint32_t layer = kv.layers_.first; layer <= kv.layers_.last; ++layer) {
    LayerKv& rows = kv.layer(layer);
    for (std::size_t piece = 0; piece < view.piece_count(); ++piece) {
      rows.add_past(view.piece_tokens(piece).value(), view.keys(layer, piece),
                    view.values(layer, piece));
    }
    for (std::size_t piece = 0; piece < writer.piece_count(); ++piece) {
      rows.add_fresh(writer.piece_tokens(piece).value(), writer.keys(layer, piece),
                     writer.values(layer, piece));
    }
  }
  return kv;
}

}  // namespace hotkv::adapter
