#pragma once
// Bytes as text, and fillings whose bytes are easy to tell apart.

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>
#include <string>
#include <string_view>

#include "shared/layout.hpp"

namespace hotkv::golden {

inline std::string hex_of_bytes(std::span<const std::byte> bytes) {
  constexpr char kDigits[] = "0123456789abcdef";
  std::string text;
  for (const std::byte byte : bytes) {
    text += kDigits[std::to_integer<unsigned>(byte) >> 4];
    text += kDigits[std::to_integer<unsigned>(byte) & 15];
  }
  return text;
}

template <class Record>
std::string hex_of(const Record& record) {
  return hex_of_bytes(std::as_bytes(std::span(&record, 1)));
}

// Word i: e0+i, six zero bytes, f0+i.
template <class Word, std::size_t count>
void put_words(Word (&words)[count]) {
  for (std::size_t i = 0; i < count; ++i) words[i] = (0xf0 + i) << 56 | (0xe0 + i);
}

// Byte i: a0+i.
template <std::size_t count>
void put_bytes(std::byte (&bytes)[count]) {
  for (std::size_t i = 0; i < count; ++i) bytes[i] = static_cast<std::byte>(0xa0 + i);
}

template <std::size_t count>
void put_text(char (&field)[count], std::string_view text) {
  std::memcpy(field, text.data(), text.size());
}

// Both the tables' header and ATTACH carry one.
inline RecipeRecord filled_recipe_record() {
  RecipeRecord record{};
  put_text(record.architecture, "llama");
  put_text(record.model_id, "llama-3-8b");
  record.dtype = 0xa4a3'a2a1;
  record.kv_heads = 0xa8a7'a6a5;
  record.key_dim = 0xacab'aaa9;
  record.value_dim = 0xb0af'aead;
  record.first_layer = 0xb4b3'b2b1;
  record.last_layer = 0xb8b7'b6b5;
  return record;
}

// Where a field stands, and where it has to.
struct Place {
  const char* what;
  std::size_t actual;
  std::size_t expected;
};

}  // namespace hotkv::golden
