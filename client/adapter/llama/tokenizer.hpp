#pragma once
// Text to tokens and back, as llama2.c's tokenizer files say.

#include <cstdint>
#include <expected>
#include <filesystem>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include <hotkv/error.hpp>

#include "client/adapter/model_config.hpp"

namespace hotkv::llama {

// Byte-pair encoding with scores, after SentencePiece. Token 1 begins a sequence, 2 ends one,
// tokens 3 to 258 are the 256 bytes.
class Tokenizer {
 public:
  static constexpr adapter::TokenId kBegin = 1;
  static constexpr adapter::TokenId kEnd = 2;
  static constexpr adapter::TokenId kFirstByte = 3;

  // Errors: system_error, naming path and call; invalid_argument for a file that ends too early or
  // holds other than `vocab_size` pieces.
  [[nodiscard]] static std::expected<Tokenizer, Error> from_file(const std::filesystem::path& path,
                                                                 std::uint32_t vocab_size);
  // For a model without text: encodes bytes, and shows every token as its number.
  // Errors: invalid_argument if `vocab_size` has no room for the 256 bytes.
  [[nodiscard]] static std::expected<Tokenizer, Error> numbered(std::uint32_t vocab_size);

  // kBegin, then `text` with a space in front (none for an empty text). What no piece covers
  // becomes bytes, so every text has an encoding.
  [[nodiscard]] std::vector<adapter::TokenId> encode(std::string_view text) const;
  // What `token` adds to the text when it follows `previous`: the space in front of a text is left
  // out, and so are control characters other than tab and line end. Empty for kBegin, kEnd and for
  // what is no token.
  [[nodiscard]] std::string decode(adapter::TokenId previous, adapter::TokenId token) const;

 private:
  struct Piece {
    std::string text;
    float score;
  };
  explicit Tokenizer(std::vector<Piece> pieces);
  // The neighbours whose joint piece has the best score become that piece, until none has one.
  void merge(std::vector<adapter::TokenId>& tokens) const;

  std::vector<Piece> pieces_;
  std::unordered_map<std::string, adapter::TokenId> ids_;  // the first piece of each text
  bool shows_numbers_ = false;
};

}  // namespace hotkv::llama
