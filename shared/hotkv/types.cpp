#include <hotkv/types.hpp>

#include <cstring>

namespace hotkv {
namespace {

// Bytes that stand for themselves in escaped text.
bool is_plain(unsigned char byte) {
  return byte >= 0x20 && byte < 0x7f && byte != '\\' && byte != '"';
}

// Value of a lower-case hexadecimal digit, or -1.
int hex_value(char c) {
  if (c >= '0' && c <= '9') return c - '0';
  if (c >= 'a' && c <= 'f') return c - 'a' + 10;
  return -1;
}

// The byte of an escape sequence \xNN at the start of `text`, or -1.
int escaped_byte(std::string_view text) {
  if (text.size() < 4 || text[0] != '\\' || text[1] != 'x') return -1;
  const int high = hex_value(text[2]);
  const int low = hex_value(text[3]);
  return high < 0 || low < 0 ? -1 : high * 16 + low;
}

}  // namespace

std::expected<SessionId, Error> SessionId::from(std::string_view bytes) {
  if (bytes.empty() || bytes.size() > kBytesMax) {
    return std::unexpected(Error{ErrorCode::invalid_argument,
                                 "session id",
                                 {},
                                 "must have 1 to 128 bytes, has " + std::to_string(bytes.size())});
  }
  SessionId id;
  std::memcpy(id.words_.data(), bytes.data(), bytes.size());
  id.size_ = static_cast<std::uint32_t>(bytes.size());
  return id;
}

std::string SessionId::escaped() const {
  return escape_bytes(bytes());
}

std::string escape_bytes(std::string_view bytes) {
  constexpr char kHex[] = "0123456789abcdef";
  std::string text;
  for (const char c : bytes) {
    const auto byte = static_cast<unsigned char>(c);
    if (is_plain(byte)) {
      text += c;
    } else {
      text += {'\\', 'x', kHex[byte >> 4], kHex[byte & 15]};
    }
  }
  return text;
}

std::expected<std::string, Error> unescape_bytes(std::string_view text) {
  std::string bytes;
  for (std::size_t at = 0; at < text.size();) {
    if (is_plain(static_cast<unsigned char>(text[at]))) {
      bytes += text[at];
      at += 1;
      continue;
    }
    const int byte = escaped_byte(text.substr(at));
    if (byte < 0 || is_plain(static_cast<unsigned char>(byte))) {
      return std::unexpected(Error{ErrorCode::invalid_argument,
                                   "unescape",
                                   {},
                                   "no escaped text at its byte " + std::to_string(at)});
    }
    bytes += static_cast<char>(byte);
    at += 4;
  }
  return bytes;
}

}  // namespace hotkv
