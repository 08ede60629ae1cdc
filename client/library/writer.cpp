#include <hotkv/writer.hpp>

#include <algorithm>
#include <string>
#include <utility>

#include "client/library/attachment.hpp"
#include "client/library/copy_rows.hpp"
#include "client/library/rows.hpp"
#include "shared/words.hpp"

namespace hotkv {
namespace {

using client::Tensor;

Error writer_error(ErrorCode code, std::string operation, std::string cause) {
  return Error{code, std::move(operation), "writer", std::move(cause)};
}

// The error of a writer that can do nothing at all, if it is one.
std::optional<Error> check_usable(const Attachment* attachment, const char* operation) {
  if (attachment == nullptr) {
    return writer_error(ErrorCode::invalid_argument, operation, "it was moved from");
  }
  if (attachment->is_foreign()) {
    return writer_error(ErrorCode::used_after_fork, operation,
                        "this process was forked from the one that attached");
  }
  return std::nullopt;
}

struct Room {
  const Attachment* attachment;
  const Chain* chain;
  TokenCount position;
  TokenCount size;
};

std::span<std::byte> room_rows(const Room& room, std::uint32_t layer, std::size_t index,
                               Tensor tensor) {
  if (room.attachment == nullptr || room.attachment->is_foreign()) return {};
  const auto owned = client::layer_index(*room.attachment, layer);
  const auto piece = client::piece_at(room.attachment->geometry(), room.position, room.size, index);
  if (!owned || !piece) return {};
  return client::rows_of(*room.attachment, *room.chain, *piece, *owned, tensor);
}

// Whole rows for an owned layer, behind what is published and within the room?
std::expected<void, Error> check_rows(const Room& room, TokenCount published, std::uint32_t layer,
                                      TokenCount first, std::size_t bytes, Tensor tensor) {
  const char* operation = tensor == Tensor::keys ? "write keys" : "write values";
  if (auto unusable = check_usable(room.attachment, operation)) return std::unexpected(*unusable);
  const auto refuse = [&](std::string cause) {
    return std::unexpected(writer_error(ErrorCode::invalid_argument, operation, std::move(cause)));
  };
  const LayerRange layers = room.attachment->recipe().fields().layers;
  if (!client::layer_index(*room.attachment, layer)) {
    return refuse("layer " + std::to_string(layer) + " is not in [" + std::to_string(layers.first) +
                  ", " + std::to_string(layers.last) + "]");
  }
  const std::uint64_t row = client::row_bytes(room.attachment->geometry(), tensor);
  if (row == 0 ? bytes != 0 : bytes % row != 0) {
    return refuse(std::to_string(bytes) + " bytes are no whole rows of " + std::to_string(row) +
                  " bytes");
  }
  const std::uint64_t count = row == 0 ? 0 : bytes / row;
  if (first > room.size || count > room.size.value() - first.value()) {
    return refuse("tokens [" + std::to_string(first.value()) + ", " +
                  std::to_string(first.value() + count) + ") of " +
                  std::to_string(room.size.value()));
  }
  if (first < published && count != 0) {
    return refuse("token " + std::to_string(first.value()) + " is published already");
  }
  return {};
}

void copy_to_room(const Room& room, std::uint32_t layer, TokenCount first,
                  std::span<const std::byte> rows, Tensor tensor) {
  const Geometry& geometry = room.attachment->geometry();
  const std::uint64_t row = client::row_bytes(geometry, tensor);
  if (row == 0 || rows.empty()) return;
  const bool streaming = rows.size() >= client::kStreamingBytesMin;
  // The rows' own pieces: those of a room that begins at their first token.
  const Room part{room.attachment, room.chain, TokenCount{room.position.value() + first.value()},
                  TokenCount{static_cast<std::uint32_t>(rows.size() / row)}};
  const std::size_t pieces = client::piece_count(geometry, part.position, part.size);
  for (std::size_t index = 0; index < pieces; ++index) {
    const auto to = room_rows(part, layer, index, tensor);
    HOTKV_FAULT_POINT("write.before-piece");
    client::copy_rows(to, rows.first(to.size()), streaming);
    rows = rows.subspan(to.size());
  }
  // Here and not in publish: a fence orders the streaming stores of its own thread only, and
  // another thread may publish.
  if (streaming) client::finish_streaming();
}

}  // namespace

Writer::Writer(std::shared_ptr<Attachment> attachment, std::shared_ptr<const Chain> chain,
               std::uint32_t pin, SlotIndex slot, Generation generation, TokenCount position,
               TokenCount size)
    : attachment_(std::move(attachment)),
      chain_(std::move(chain)),
      pin_(pin),
      slot_(slot),
      generation_(generation),
      position_(position),
      size_(size) {}

Writer::Writer(Writer&& other) noexcept
    : attachment_(std::move(other.attachment_)),
      chain_(std::move(other.chain_)),
      pin_(other.pin_),
      slot_(other.slot_),
      generation_(other.generation_),
      position_(other.position_),
      size_(std::exchange(other.size_, TokenCount{0})),
      published_(other.published_) {}

Writer& Writer::operator=(Writer&& other) noexcept {
  if (this == &other) return *this;
  unpin();
  attachment_ = std::move(other.attachment_);
  chain_ = std::move(other.chain_);
  pin_ = other.pin_;
  slot_ = other.slot_;
  generation_ = other.generation_;
  position_ = other.position_;
  size_ = std::exchange(other.size_, TokenCount{0});
  published_ = other.published_;
  return *this;
}

Writer::~Writer() {
  unpin();
}

void Writer::unpin() noexcept {
  if (attachment_ != nullptr && !attachment_->is_foreign()) attachment_->pins().unpin(pin_);
}

LayerRange Writer::layers() const {
  return attachment_ == nullptr ? LayerRange{} : attachment_->recipe().fields().layers;
}

std::size_t Writer::piece_count() const {
  if (attachment_ == nullptr) return 0;
  return client::piece_count(attachment_->geometry(), position_, size_);
}

TokenCount Writer::piece_tokens(std::size_t piece) const {
  if (attachment_ == nullptr) return TokenCount{0};
  const auto found = client::piece_at(attachment_->geometry(), position_, size_, piece);
  return TokenCount{found ? found->count : 0};
}

std::span<std::byte> Writer::keys(std::uint32_t layer, std::size_t piece) {
  return room_rows({attachment_.get(), chain_.get(), position_, size_}, layer, piece, Tensor::keys);
}

std::span<std::byte> Writer::values(std::uint32_t layer, std::size_t piece) {
  return room_rows({attachment_.get(), chain_.get(), position_, size_}, layer, piece,
                   Tensor::values);
}

std::expected<void, Error> Writer::write_keys(std::uint32_t layer, TokenCount first,
                                              std::span<const std::byte> rows) {
  const Room room{attachment_.get(), chain_.get(), position_, size_};
  auto checked = check_rows(room, published_, layer, first, rows.size(), Tensor::keys);
  if (checked) copy_to_room(room, layer, first, rows, Tensor::keys);
  return checked;
}

std::expected<void, Error> Writer::write_values(std::uint32_t layer, TokenCount first,
                                                std::span<const std::byte> rows) {
  const Room room{attachment_.get(), chain_.get(), position_, size_};
  auto checked = check_rows(room, published_, layer, first, rows.size(), Tensor::values);
  if (checked) copy_to_room(room, layer, first, rows, Tensor::values);
  return checked;
}

std::expected<TokenCount, Error> Writer::publish(TokenCount tokens) {
  if (auto unusable = check_usable(attachment_.get(), "publish")) {
    return std::unexpected(*unusable);
  }
  if (attachment_->is_lost()) {
    return std::unexpected(writer_error(ErrorCode::lease_lost, "publish",
                                        "the context was lost in a restart of the daemon"));
  }
  if (tokens < published_ || tokens > size_) {
    return std::unexpected(writer_error(
        ErrorCode::invalid_argument, "publish",
        std::to_string(tokens.value()) + " tokens, between " + std::to_string(published_.value()) +
            " (published) and " + std::to_string(size_.value()) + " (its size) are possible"));
  }
  const TokenCount from{position_.value() + published_.value()};
  const TokenCount to{position_.value() + tokens.value()};
  AtomicWord& length = attachment_->length(slot_);
  HOTKV_FAULT_POINT("publish.before-exchange");
  if (!hotkv::publish(length, generation_, from, to)) {
    const auto now = LengthWord::from_bits(length.load(std::memory_order_acquire));
    if (now.generation == generation_) {
      return std::unexpected(writer_error(
          ErrorCode::length_mismatch, "publish",
          "expected " + std::to_string(from.value()) + " published tokens, there are " +
              std::to_string(now.tokens.value()) + ": another writer of this context was first"));
    }
    return std::unexpected(writer_error(ErrorCode::lease_lost, "publish",
                                        "the context was taken over, truncated or ended"));
  }
  published_ = tokens;
  attachment_->touch(slot_);
  return to;
}

}  // namespace hotkv
