#include "client/adapter/llama/tokenizer.hpp"

#include <array>
#include <cstdio>
#include <cstring>
#include <fstream>
#include <iterator>
#include <limits>
#include <optional>
#include <span>
#include <utility>

namespace hotkv::llama {
namespace {

using adapter::TokenId;

constexpr std::uint32_t kBytes = 256;

std::unexpected<Error> refused(const std::filesystem::path& path, std::string cause) {
  return std::unexpected(
      Error{ErrorCode::invalid_argument, "load tokenizer", path.string(), std::move(cause)});
}

std::expected<std::string, Error> read_file(const std::filesystem::path& path) {
  std::ifstream file(path, std::ios::binary);
  if (!file) return std::unexpected(system_error("open tokenizer", path.string()));
  std::string bytes((std::istreambuf_iterator<char>(file)), std::istreambuf_iterator<char>());
  if (file.bad()) return std::unexpected(system_error("read tokenizer", path.string()));
  return bytes;
}

// The number at the front of `bytes`, which is taken off.
template <class T>
std::optional<T> take(std::string_view& bytes) {
  T value;
  if (bytes.size() < sizeof value) return std::nullopt;
  std::memcpy(&value, bytes.data(), sizeof value);
  bytes.remove_prefix(sizeof value);
  return value;
}

// "<0x0A>" stands for one byte.
std::optional<char> byte_of(std::string_view piece) {
  unsigned value = 0;
  char end = 0;
  if (piece.size() != 6 ||
      std::sscanf(std::string(piece).c_str(), "<0x%02X%c", &value, &end) != 2 || end != '>') {
    return std::nullopt;
  }
  return static_cast<char>(value);
}

bool is_shown(char byte) {
  const auto value = static_cast<unsigned char>(byte);
  return (value >= 0x20 && value != 0x7f) || byte == '\t' || byte == '\n';
}

// The first byte of a text that is not empty, and the UTF-8 continuation bytes behind it, at most
// four in all: a character, where the text is UTF-8.
std::size_t character_size(std::string_view text) {
  std::size_t size = 1;
  while (size < text.size() && size < 4 &&
         (static_cast<unsigned char>(text[size]) & 0xc0) == 0x80) {
    ++size;
  }
  return size;
}

}  // namespace

Tokenizer::Tokenizer(std::vector<Piece> pieces) : pieces_(std::move(pieces)) {
  for (std::size_t id = 0; id < pieces_.size(); ++id) {
    ids_.try_emplace(pieces_[id].text, static_cast<TokenId>(id));
  }
}

std::expected<Tokenizer, Error> Tokenizer::from_file(const std::filesystem::path& path,
                                                     std::uint32_t vocab_size) {
  auto bytes = read_file(path);
  if (!bytes) return std::unexpected(bytes.error());
  std::string_view rest = *bytes;
  std::vector<Piece> pieces;
  if (!take<std::uint32_t>(rest)) return refused(path, "it ends within its header");
  while (!rest.empty() && pieces.size() < vocab_size) {
    const auto score = take<float>(rest);
    const auto size = take<std::uint32_t>(rest);
    if (!score || !size || *size > rest.size()) {
      return refused(path, "it ends within piece " + std::to_string(pieces.size()));
    }
    pieces.push_back({std::string(rest.substr(0, *size)), *score});
    rest.remove_prefix(*size);
  }
  if (pieces.size() != vocab_size || !rest.empty()) {
    const std::string more = rest.empty() ? "" : "more than ";
    return refused(path, more + std::to_string(pieces.size()) + " pieces, but the model has " +
                             std::to_string(vocab_size) + " tokens");
  }
  if (vocab_size < kFirstByte + kBytes) {
    return refused(path,
                   "its " + std::to_string(vocab_size) + " pieces have no room for the bytes");
  }
  return Tokenizer(std::move(pieces));
}

std::expected<Tokenizer, Error> Tokenizer::numbered(std::uint32_t vocab_size) {
  if (vocab_size < kFirstByte + kBytes) {
    return std::unexpected(
        Error{ErrorCode::invalid_argument, "make tokenizer", "numbered",
              std::to_string(vocab_size) + " tokens have no room for the bytes"});
  }
  std::vector<Piece> pieces(vocab_size, {"", 0});
  Tokenizer tokenizer(std::move(pieces));
  tokenizer.ids_.clear();
  tokenizer.shows_numbers_ = true;
  return tokenizer;
}

std::vector<TokenId> Tokenizer::encode(std::string_view text) const {
  std::vector<TokenId> tokens{kBegin};
  if (text.empty()) return tokens;
  if (const auto space = ids_.find(" "); space != ids_.end()) tokens.push_back(space->second);
  while (!text.empty()) {
    const std::string character(text.substr(0, character_size(text)));
    if (const auto known = ids_.find(character); known != ids_.end()) {
      tokens.push_back(known->second);
    } else {
      for (const char byte : character) {
        tokens.push_back(kFirstByte + static_cast<unsigned char>(byte));
      }
    }
    text.remove_prefix(character.size());
  }
  merge(tokens);
  return tokens;
}

void Tokenizer::merge(std::vector<TokenId>& tokens) const {
  for (;;) {
    float best_score = -std::numeric_limits<float>::infinity();
    std::size_t best_at = 0;
    TokenId best_id = 0;
    for (std::size_t at = 0; at + 1 < tokens.size(); ++at) {
      const auto joint = ids_.find(pieces_[tokens[at]].text + pieces_[tokens[at + 1]].text);
      if (joint != ids_.end() && pieces_[joint->second].score > best_score) {
        best_score = pieces_[joint->second].score;
        best_at = at;
        best_id = joint->second;
      }
    }
    if (best_score == -std::numeric_limits<float>::infinity()) return;
    tokens[best_at] = best_id;
    tokens.erase(tokens.begin() + static_cast<std::ptrdiff_t>(best_at) + 1);
  }
}

std::string Tokenizer::decode(TokenId previous, TokenId token) const {
  if (token >= pieces_.size() || token == kBegin || token == kEnd) return "";
  if (shows_numbers_) return std::to_string(token) + " ";
  std::string_view piece = pieces_[token].text;
  if (const auto byte = byte_of(piece)) return is_shown(*byte) ? std::string(1, *byte) : "";
  if (previous == kBegin && piece.starts_with(' ')) piece.remove_prefix(1);
  if (piece.size() == 1 && !is_shown(piece.front())) return "";
  return std::string(piece);
}

}  // namespace hotkv::llama
