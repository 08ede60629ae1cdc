#include <hotkv/view.hpp>

#include <cstring>
#include <utility>

#include "client/library/attachment.hpp"
#include "client/library/rows.hpp"

namespace hotkv {
namespace {

using client::Tensor;

// Empty for what is not there, for a view that was moved from, and in a forked child.
std::span<const std::byte> view_rows(const Attachment* attachment, const Chain* chain,
                                     TokenCount length, std::uint32_t layer, std::size_t index,
                                     Tensor tensor) {
  if (attachment == nullptr || attachment->is_foreign()) return {};
  const auto owned = client::layer_index(*attachment, layer);
  const auto piece = client::piece_at(attachment->geometry(), TokenCount{0}, length, index);
  if (!owned || !piece) return {};
  return client::rows_of(*attachment, *chain, *piece, *owned, tensor);
}

std::size_t gather(const Attachment* attachment, const Chain* chain, TokenCount length,
                   std::uint32_t layer, std::span<std::byte> out, Tensor tensor) {
  if (attachment == nullptr || attachment->is_foreign() ||
      !client::layer_index(*attachment, layer)) {
    return 0;
  }
  const Geometry& geometry = attachment->geometry();
  const std::uint64_t needed = length.value() * client::row_bytes(geometry, tensor);
  if (out.size() < needed) return 0;
  const std::size_t pieces = client::piece_count(geometry, TokenCount{0}, length);
  std::size_t copied = 0;
  for (std::size_t index = 0; index < pieces; ++index) {
    const auto rows = view_rows(attachment, chain, length, layer, index, tensor);
    if (!rows.empty()) std::memcpy(out.data() + copied, rows.data(), rows.size());
    copied += rows.size();
  }
  return copied;
}

}  // namespace

View::View(std::shared_ptr<const Attachment> attachment, std::shared_ptr<const Chain> chain,
           std::uint32_t pin, TokenCount length)
    : attachment_(std::move(attachment)), chain_(std::move(chain)), pin_(pin), length_(length) {}

View::View(View&& other) noexcept
    : attachment_(std::move(other.attachment_)),
      chain_(std::move(other.chain_)),
      pin_(other.pin_),
      length_(std::exchange(other.length_, TokenCount{0})) {}

View& View::operator=(View&& other) noexcept {
  if (this == &other) return *this;
  unpin();
  attachment_ = std::move(other.attachment_);
  chain_ = std::move(other.chain_);
  pin_ = other.pin_;
  length_ = std::exchange(other.length_, TokenCount{0});
  return *this;
}

View::~View() {
  unpin();
}

void View::unpin() noexcept {
  if (attachment_ != nullptr && !attachment_->is_foreign()) attachment_->pins().unpin(pin_);
}

LayerRange View::layers() const {
  return attachment_ == nullptr ? LayerRange{} : attachment_->recipe().fields().layers;
}

std::size_t View::piece_count() const {
  if (attachment_ == nullptr) return 0;
  return client::piece_count(attachment_->geometry(), TokenCount{0}, length_);
}

TokenCount View::piece_tokens(std::size_t piece) const {
  if (attachment_ == nullptr) return TokenCount{0};
  const auto found = client::piece_at(attachment_->geometry(), TokenCount{0}, length_, piece);
  return TokenCount{found ? found->count : 0};
}

std::span<const std::byte> View::keys(std::uint32_t layer, std::size_t piece) const {
  return view_rows(attachment_.get(), chain_.get(), length_, layer, piece, Tensor::keys);
}

std::span<const std::byte> View::values(std::uint32_t layer, std::size_t piece) const {
  return view_rows(attachment_.get(), chain_.get(), length_, layer, piece, Tensor::values);
}

std::size_t View::gather_keys(std::uint32_t layer, std::span<std::byte> out) const {
  return gather(attachment_.get(), chain_.get(), length_, layer, out, Tensor::keys);
}

std::size_t View::gather_values(std::uint32_t layer, std::span<std::byte> out) const {
  return gather(attachment_.get(), chain_.get(), length_, layer, out, Tensor::values);
}

}  // namespace hotkv
