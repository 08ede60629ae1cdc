#pragma once
// A view: the published K and V of one context, read in place.

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>

#include <hotkv/recipe.hpp>
#include <hotkv/types.hpp>

namespace hotkv {

class Attachment;
struct Chain;  // the chunks of a view, first token first; private to the library

// While it lives, every byte it shows stays as it is: through truncate, release, eviction, another
// writer, and the daemon's death. Move-only; its destructor unpins. Reading it from several threads
// at once is fine. In a forked child it shows nothing and unpins nothing.
//
// Tokens lie in pieces (chunks): piece p holds tokens [p * chunk_tokens, …), the last one fewer.
class View {
 public:
  View(View&&) noexcept;
  View& operator=(View&&) noexcept;
  ~View();

  [[nodiscard]] TokenCount length() const { return length_; }
  // The owned layers, numbered as in the model: `layer` below is in [first, last].
  [[nodiscard]] LayerRange layers() const;
  [[nodiscard]] std::size_t piece_count() const;
  [[nodiscard]] TokenCount piece_tokens(std::size_t piece) const;

  // Rows of one layer in one piece: [piece_tokens][kv_heads][key_dim] (or value_dim) in the
  // recipe's dtype. Empty for a layer or piece that is not there.
  [[nodiscard]] std::span<const std::byte> keys(std::uint32_t layer, std::size_t piece) const;
  [[nodiscard]] std::span<const std::byte> values(std::uint32_t layer, std::size_t piece) const;

  // Copies the rows of all tokens of one layer, in order, to `out`. Returns the bytes copied:
  // length
  // * row bytes, or 0 if `out` is smaller than that or the layer is not owned.
  std::size_t gather_keys(std::uint32_t layer, std::span<std::byte> out) const;
  std::size_t gather_values(std::uint32_t layer, std::span<std::byte> out) const;

 private:
  friend class Attachment;
  View(std::shared_ptr<const Attachment> attachment, std::shared_ptr<const Chain> chain,
       std::uint32_t pin, TokenCount length);
  void unpin() noexcept;

  std::shared_ptr<const Attachment> attachment_;
  std::shared_ptr<const Chain> chain_;
  std::uint32_t pin_ = 0;  // index of the pin word in this client's page
  TokenCount length_;
};

}  // namespace hotkv
