#include <hotkv/types.hpp>

#include <gtest/gtest.h>

#include <string>
#include <type_traits>
#include <unordered_set>

namespace hotkv {
namespace {

std::string every_byte() {
  std::string bytes;
  for (int byte = 0; byte < 256; ++byte) bytes += static_cast<char>(byte);
  return bytes;
}

TEST(Strong, DistinctThingsDoNotConvertIntoEachOther) {
  static_assert(!std::is_convertible_v<std::uint32_t, SlotIndex>);
  static_assert(!std::is_convertible_v<SlotIndex, std::uint32_t>);
  static_assert(!std::is_constructible_v<SlotIndex, ChunkIndex>);
  static_assert(!std::is_constructible_v<Epoch, Generation>);
  static_assert(sizeof(Epoch) == 8 && sizeof(Generation) == 4);
  EXPECT_EQ(SlotIndex{}.value(), 0u);
  EXPECT_LT(Epoch{1}, Epoch{~std::uint64_t{0}});
  EXPECT_EQ(TokenCount{7}, TokenCount{7});
}

// FR-082: an id of a wrong length is refused where it is made.
TEST(SessionId, TakesOneTo128BytesAndNoOthers) {
  EXPECT_TRUE(SessionId::from("a").has_value());
  EXPECT_TRUE(SessionId::from(std::string(128, 'a')).has_value());
  for (const std::size_t size : {0, 129, 1000}) {
    const auto refused = SessionId::from(std::string(size, 'a'));
    ASSERT_FALSE(refused.has_value()) << size;
    EXPECT_EQ(refused.error().code, ErrorCode::invalid_argument);
    EXPECT_NE(refused.error().message().find("has " + std::to_string(size)), std::string::npos)
        << refused.error().message();
  }
}

TEST(SessionId, KeepsEveryByte) {
  const std::string all = every_byte();
  for (const std::string& bytes : {all.substr(0, 128), all.substr(128)}) {
    const auto id = SessionId::from(bytes);
    ASSERT_TRUE(id.has_value());
    EXPECT_EQ(id->bytes(), bytes);
    EXPECT_EQ(id->size_bytes(), 128u);
  }
}

TEST(SessionId, DiffersFromAnIdWithOneMoreZeroByte) {
  const SessionId shorter = *SessionId::from("a");
  const SessionId longer = *SessionId::from(std::string_view("a\0", 2));
  EXPECT_EQ(shorter.words(), longer.words());
  EXPECT_NE(shorter, longer);
  EXPECT_LT(shorter, longer);
}

TEST(SessionId, IsPaddedWithZeroesAsWords) {
  const SessionId id = *SessionId::from("abcdefghi");
  EXPECT_EQ(id.words()[0], 0x6867'6665'6463'6261u);
  EXPECT_EQ(id.words()[1], 0x69u);
  for (std::size_t i = 2; i < SessionId::kWords; ++i) EXPECT_EQ(id.words()[i], 0u);
}

TEST(SessionId, HashesByItsBytes) {
  const std::unordered_set<SessionId> ids{*SessionId::from("a"), *SessionId::from("b"),
                                          *SessionId::from("a")};
  EXPECT_EQ(ids.size(), 2u);
}

TEST(EscapeBytes, LeavesPrintableAsciiAndEscapesTheRest) {
  EXPECT_EQ(escape_bytes("user-7 ~/{}"), "user-7 ~/{}");
  EXPECT_EQ(escape_bytes(std::string_view("\0\n\x7f\xff\\\"", 6)), R"(\x00\x0a\x7f\xff\x5c\x22)");
  EXPECT_EQ(SessionId::from("a\"b")->escaped(), R"(a\x22b)");
}

TEST(UnescapeBytes, GivesBackEveryByte) {
  const std::string all = every_byte();
  EXPECT_EQ(unescape_bytes(escape_bytes(all)), all);
  EXPECT_EQ(unescape_bytes(""), "");
}

TEST(UnescapeBytes, RefusesWhatEscapeBytesNeverMakes) {
  const std::string_view texts[] = {"\\",        "\\x",   "\\x0", "\\n",
                                    "\\X00",     "\\x0g",  // cut off, or not hexadecimal
                                    "\\x5C",     "\\xFF",  // upper case
                                    "\\x61",     "\\x20",  // would stand for themselves
                                    "a\"b",      "a\nb",  "\x7f", "\xc3\xa4",  // would be escaped
                                    "abc\\x5c\\"};
  for (const std::string_view text : texts) {
    const auto refused = unescape_bytes(text);
    ASSERT_FALSE(refused.has_value()) << text;
    EXPECT_EQ(refused.error().code, ErrorCode::invalid_argument);
  }
  EXPECT_NE(unescape_bytes("ab\\q").error().cause.find("byte 2"), std::string::npos);
}

}  // namespace
}  // namespace hotkv
