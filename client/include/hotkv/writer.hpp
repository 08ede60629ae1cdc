#pragma once
// A writer: room for tokens behind the published length, and the right moment to show them.

#include <cstddef>
#include <cstdint>
#include <expected>
#include <memory>
#include <span>

#include <hotkv/cache_miss.hpp>
#include <hotkv/error.hpp>
#include <hotkv/recipe.hpp>
#include <hotkv/types.hpp>

namespace hotkv {

class Attachment;
struct Chain;

// Fill K and V of every owned layer, then publish. What is not published is never seen by anybody.
// While it lives its memory is given to nobody else, even if the context is taken over, truncated
// or evicted meanwhile: then the stores go nowhere and publish says so. Move-only; its destructor
// lets go. Filling different layers or pieces from different threads is fine; publish is one
// thread's.
//
// Its tokens are numbered from 0; token 0 is the context's token `position()`. They lie in pieces
// (parts of chunks), in order; a piece is contiguous for one layer's K or V.
class Writer {
 public:
  Writer(Writer&&) noexcept;
  Writer& operator=(Writer&&) noexcept;
  ~Writer();

  [[nodiscard]] TokenCount position() const { return position_; }
  [[nodiscard]] TokenCount size() const { return size_; }
  [[nodiscard]] LayerRange layers() const;
  [[nodiscard]] std::size_t piece_count() const;
  [[nodiscard]] TokenCount piece_tokens(std::size_t piece) const;

  // Room for rows of one layer in one piece: [piece_tokens][kv_heads][key_dim] (or value_dim).
  // Empty for a layer or piece that is not there. Tokens that are published must not be written
  // again: readers see these very bytes. Whoever fills it by streaming stores or from a device
  // fences (sfence) or waits for the stream, on the thread that stored, before publish.
  [[nodiscard]] std::span<std::byte> keys(std::uint32_t layer, std::size_t piece);
  [[nodiscard]] std::span<std::byte> values(std::uint32_t layer, std::size_t piece);

  // Copies `rows` (whole rows, in order) to tokens [first, …) of one layer. 64 KiB and more go by
  // streaming stores, which leave the caches alone and are complete on return.
  // Errors: invalid_argument naming layer, rows or range (published tokens are out of it),
  // used_after_fork; nothing was written then.
  std::expected<void, Error> write_keys(std::uint32_t layer, TokenCount first,
                                        std::span<const std::byte> rows);
  std::expected<void, Error> write_values(std::uint32_t layer, TokenCount first,
                                          std::span<const std::byte> rows);

  // Shows tokens [0, tokens) of this writer, all layers at once; may be called again with more.
  // No system call. Returns the context's new length.
  // Errors: lease_lost (the context was taken over, truncated or ended, or the daemon came back
  // without its memory: the next append or resolve says why), length_mismatch (another writer of
  // this context was first), invalid_argument (fewer than already shown, or more than size()),
  // used_after_fork; then nothing more was shown.
  [[nodiscard]] std::expected<TokenCount, Error> publish(TokenCount tokens);
  [[nodiscard]] std::expected<TokenCount, Error> publish() { return publish(size_); }

 private:
  friend class Attachment;
  friend class Context;
  Writer(std::shared_ptr<Attachment> attachment, std::shared_ptr<const Chain> chain,
         std::uint32_t pin, SlotIndex slot, Generation generation, TokenCount position,
         TokenCount size);
  void unpin() noexcept;

  std::shared_ptr<Attachment> attachment_;
  std::shared_ptr<const Chain> chain_;
  std::uint32_t pin_ = 0;
  SlotIndex slot_;
  Generation generation_;
  TokenCount position_;
  TokenCount size_;
  TokenCount published_;
};

}  // namespace hotkv
