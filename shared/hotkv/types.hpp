#pragma once
// The vocabulary of hotkv: distinct types for things that must never be swapped.

#include <array>
#include <compare>
#include <cstddef>
#include <cstdint>
#include <expected>
#include <string>
#include <string_view>

#include <hotkv/error.hpp>

namespace hotkv {

// A number that means one thing. It converts to nothing else by itself; `value()` is the way out.
template <class Tag, class Rep>
class Strong {
 public:
  using rep = Rep;
  constexpr Strong() = default;
  constexpr explicit Strong(Rep value) : value_(value) {}
  [[nodiscard]] constexpr Rep value() const { return value_; }
  friend constexpr auto operator<=>(const Strong&, const Strong&) = default;

 private:
  Rep value_{};
};

// The route epoch of a session. Only ever rises; a higher one supersedes the context of a lower
// one.
using Epoch = Strong<struct EpochTag, std::uint64_t>;
// A context's index in the session table of its shard.
using SlotIndex = Strong<struct SlotIndexTag, std::uint32_t>;
// Changes whenever what a reader or writer of a slot may rely on ends. Never repeats in a slot.
using Generation = Strong<struct GenerationTag, std::uint32_t>;
// A chunk's index in the arena of its shard.
using ChunkIndex = Strong<struct ChunkIndexTag, std::uint32_t>;
// An extent's index in the arena of its shard.
using ExtentIndex = Strong<struct ExtentIndexTag, std::uint32_t>;
// A client's index in the pages file of its shard.
using PageIndex = Strong<struct PageIndexTag, std::uint32_t>;
// A number of tokens: a length or a half-open position. Never a byte count.
using TokenCount = Strong<struct TokenCountTag, std::uint32_t>;
// A distance in bytes from the start of a file or a chunk.
using ByteOffset = Strong<struct ByteOffsetTag, std::uint64_t>;

// The route session id a client chose: 1 to 128 arbitrary bytes (zero bytes and non-UTF-8
// included). Two ids are the same session only if every byte is the same.
class SessionId {
 public:
  static constexpr std::size_t kBytesMax = 128;
  static constexpr std::size_t kWords = kBytesMax / 8;

  // Errors: invalid_argument if `bytes` is empty or longer than 128 bytes.
  [[nodiscard]] static std::expected<SessionId, Error> from(std::string_view bytes);

  [[nodiscard]] std::string_view bytes() const {
    return {reinterpret_cast<const char*>(words_.data()), size_};
  }
  // The id as eight-byte words, zero-padded to 128 bytes: the form in which the tables hold it.
  [[nodiscard]] const std::array<std::uint64_t, kWords>& words() const { return words_; }
  [[nodiscard]] std::uint32_t size_bytes() const { return size_; }
  // Printable ASCII as it is; a backslash, a double quote and all other bytes as \xNN.
  [[nodiscard]] std::string escaped() const;

  friend bool operator==(const SessionId&, const SessionId&) = default;
  friend auto operator<=>(const SessionId& a, const SessionId& b) {
    return a.bytes() <=> b.bytes();
  }

 private:
  SessionId() = default;
  std::array<std::uint64_t, kWords> words_{};
  std::uint32_t size_ = 0;
};

// What a client may do with a shard. Numbers are on the wire.
enum class Access : std::uint32_t { read = 1, write = 2 };

// How the published length must compare with the expected one. Numbers are on the wire.
enum class LengthMatch : std::uint32_t { exact = 1, at_least = 2, any = 3 };

// Escapes any bytes the way SessionId::escaped does, for logs, JSON and messages.
[[nodiscard]] std::string escape_bytes(std::string_view bytes);
// The bytes that escape_bytes turns into exactly `text`, so two different texts never mean the same
// bytes. Errors: invalid_argument, for any other text.
[[nodiscard]] std::expected<std::string, Error> unescape_bytes(std::string_view text);

}  // namespace hotkv

template <>
struct std::hash<hotkv::SessionId> {
  std::size_t operator()(const hotkv::SessionId& id) const noexcept {
    return std::hash<std::string_view>{}(id.bytes());
  }
};
