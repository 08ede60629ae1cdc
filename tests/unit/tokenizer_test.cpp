#include "client/adapter/llama/tokenizer.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdio>
#include <fstream>
#include <string>
#include <utility>
#include <vector>

#include "tests/support/daemon_process.hpp"
#include "tests/support/data_folders.hpp"
#include "tests/support/tiny_llama.hpp"

namespace hotkv::llama {
namespace {

using adapter::TokenId;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

// The 259 pieces that every tokenizer begins with, and some of a small one.
class TokenizerFile : public ::testing::Test {
 protected:
  using Pieces = std::vector<std::pair<std::string, float>>;
  static Pieces small_pieces() {
    Pieces pieces{{"<unk>", 0}, {"<s>", 0}, {"</s>", 0}};
    for (unsigned byte = 0; byte < 256; ++byte) {
      char text[8];
      std::snprintf(text, sizeof text, "<0x%02X>", byte);
      pieces.emplace_back(text, 0);
    }
    // 259 …                                                             265
    for (const char* piece : {" ", "a", "b", "ab", " a", "\n", "é"}) {
      pieces.emplace_back(piece, piece == std::string("ab") ? -1.0f : -2.0f);
    }
    return pieces;
  }
  static std::string bytes_of(const Pieces& pieces) {
    std::string bytes(4, '\0');  // the longest piece, which nobody needs
    const auto put = [&](const auto& value) {
      bytes.append(reinterpret_cast<const char*>(&value), sizeof value);
    };
    for (const auto& [text, score] : pieces) {
      put(score);
      put(static_cast<std::uint32_t>(text.size()));
      bytes += text;
    }
    return bytes;
  }
  std::expected<Tokenizer, Error> load(const std::string& bytes, std::uint32_t vocab = 266) {
    const auto path = folder.path() / "tok.bin";
    std::ofstream(path, std::ios::binary | std::ios::trunc) << bytes;
    return Tokenizer::from_file(path, vocab);
  }
  std::string refusal(const std::string& bytes, std::uint32_t vocab = 266) {
    const auto tokenizer = load(bytes, vocab);
    return tokenizer ? "accepted" : tokenizer.error().message();
  }
  testing::TemporaryDirectory folder;
};

TEST_F(TokenizerFile, MergesTheBestNeighboursFirst) {
  const auto tokenizer = load(bytes_of(small_pieces())).value();
  EXPECT_THAT(tokenizer.encode(""), ElementsAre(1));
  // " " "a" "b": "ab" has a better score than " a".
  EXPECT_THAT(tokenizer.encode("ab"), ElementsAre(1, 259, 262));
  EXPECT_THAT(tokenizer.encode("aab"), ElementsAre(1, 263, 262));
  EXPECT_THAT(tokenizer.encode("ba"), ElementsAre(1, 259, 261, 260));
}

TEST_F(TokenizerFile, OfEquallyGoodNeighboursTheFirstAreMerged) {
  auto pieces = small_pieces();
  pieces.emplace_back("bb", -2.0f);
  EXPECT_THAT(load(bytes_of(pieces), 267)->encode("bbb"), ElementsAre(1, 259, 266, 261));
}

TEST_F(TokenizerFile, WhatNoPieceCoversBecomesBytes) {
  const auto tokenizer = load(bytes_of(small_pieces())).value();
  EXPECT_THAT(tokenizer.encode("é"), ElementsAre(1, 259, 265));
  EXPECT_THAT(tokenizer.encode("ö"), ElementsAre(1, 259, 3 + 0xc3, 3 + 0xb6));
  EXPECT_THAT(tokenizer.encode(std::string("\x00\xff", 2)), ElementsAre(1, 259, 3, 3 + 0xff));
  EXPECT_THAT(tokenizer.encode("\x80\x80\x80\x80\x80"),
              ElementsAre(1, 259, 131, 131, 131, 131, 131));
}

TEST_F(TokenizerFile, DecodesWithoutTheSpaceInFrontAndWithoutControlCharacters) {
  const auto tokenizer = load(bytes_of(small_pieces())).value();
  EXPECT_EQ(tokenizer.decode(1, 263), "a");
  EXPECT_EQ(tokenizer.decode(260, 263), " a");
  EXPECT_EQ(tokenizer.decode(260, 264), "\n");
  EXPECT_EQ(tokenizer.decode(260, 3 + 'x'), "x");
  EXPECT_EQ(tokenizer.decode(260, 3 + 0xc3), "\xc3");
  EXPECT_EQ(tokenizer.decode(260, 3 + 0x1b), "") << "an escape sequence is not for a terminal";
  EXPECT_EQ(tokenizer.decode(260, 1), "");
  EXPECT_EQ(tokenizer.decode(260, 2), "");
  EXPECT_EQ(tokenizer.decode(260, 266), "") << "no token";
  std::string text;
  const auto tokens = tokenizer.encode("ab é\nba");
  for (std::size_t i = 1; i < tokens.size(); ++i)
    text += tokenizer.decode(tokens[i - 1], tokens[i]);
  EXPECT_EQ(text, "ab é\nba");
}

TEST_F(TokenizerFile, AFileThatIsNoneIsRefusedWithTheReason) {
  const std::string good = bytes_of(small_pieces());
  EXPECT_EQ(refusal(good), "accepted");
  for (std::size_t size = 0; size < good.size(); ++size) {
    ASSERT_NE(refusal(good.substr(0, size)), "accepted") << size << " bytes";
  }
  EXPECT_THAT(refusal(""), HasSubstr("within its header"));
  EXPECT_THAT(refusal(good.substr(0, good.size() - 1)), HasSubstr("within piece 265"));
  EXPECT_THAT(refusal(good, 265), HasSubstr("more than 265 pieces, but the model has 265"));
  EXPECT_THAT(refusal(good, 300), HasSubstr("266 pieces, but the model has 300"));
  EXPECT_THAT(refusal(bytes_of({{"a", 0}}), 1), HasSubstr("no room for the bytes"));
  std::string huge = good;
  huge[8] = huge[9] = huge[10] = huge[11] = '\xff';  // the first piece's size
  EXPECT_THAT(refusal(huge), HasSubstr("within piece 0"));
  const auto missing = Tokenizer::from_file(folder.path() / "nothing", 266);
  ASSERT_FALSE(missing);
  EXPECT_EQ(missing.error().code, ErrorCode::system_error);
}

TEST(Tokenizer, NumbersStandForTokensOfAModelWithoutText) {
  const auto tokenizer = Tokenizer::numbered(300).value();
  EXPECT_THAT(tokenizer.encode("A"), ElementsAre(1, 3 + 'A'));
  EXPECT_EQ(tokenizer.decode(1, 17), "17 ");
  EXPECT_EQ(tokenizer.decode(17, 1), "");
  EXPECT_FALSE(Tokenizer::numbered(258));
}

// Encodings as the program that the file format comes from makes them.
TEST(Tokenizer, EncodesAsTheOriginalDoes) {
  const auto path = testing::models_folder() / "tok512.bin";
  if (!std::filesystem::exists(path)) GTEST_SKIP() << path << " is not there";
  const auto tokenizer = Tokenizer::from_file(path, 512).value();
  EXPECT_THAT(tokenizer.encode("Once upon a time"), ElementsAre(1, 403, 407, 261, 378));
  EXPECT_THAT(tokenizer.encode("Lily"), ElementsAre(1, 317));
  EXPECT_THAT(tokenizer.encode("The café was closed.\nReally?"),
              ElementsAre(1, 291, 280, 412, 431, 485, 286, 280, 421, 414, 419, 266, 426, 13, 461,
                          411, 388, 422, 450));
  EXPECT_THAT(tokenizer.encode("hello  world"), ElementsAre(1, 281, 306, 414, 410, 263, 304, 341));
  EXPECT_THAT(tokenizer.encode(" leading"), ElementsAre(1, 410, 278, 411, 380, 299));
  EXPECT_THAT(tokenizer.encode("中文"), ElementsAre(1, 410, 231, 187, 176, 233, 153, 138));
  EXPECT_THAT(tokenizer.encode("x"), ElementsAre(1, 410, 444));
}

}  // namespace
}  // namespace hotkv::llama
