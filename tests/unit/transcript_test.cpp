#include "client/examples/shard/transcript.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <fstream>
#include <iterator>
#include <string>

#include "tests/support/daemon_process.hpp"
#include "tests/support/tiny_llama.hpp"

namespace hotkv::shard {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using testing::key_of;

class TranscriptFile : public ::testing::Test {
 protected:
  std::expected<Transcript, Error> open(std::uint64_t epoch = 1,
                                        std::vector<adapter::TokenId> prompt = {1, 40}) {
    return Transcript::open(path, {key_of("s\"\n", epoch), "model", std::move(prompt)});
  }
  std::string text() const {
    std::ifstream file(path, std::ios::binary);
    return {std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>()};
  }
  void write(const std::string& content) {
    std::ofstream(path, std::ios::binary | std::ios::trunc) << content;
  }
  std::string refusal() {
    const auto opened = open();
    return opened ? "accepted" : opened.error().message();
  }
  testing::TemporaryDirectory folder;
  std::filesystem::path path = folder.path() / "transcript";
};

TEST_F(TranscriptFile, GoesOnWithWhatWasWritten) {
  {
    auto first = open(5).value();
    EXPECT_FALSE(first.is_continued());
    ASSERT_TRUE(first.add(7));
    ASSERT_TRUE(first.add(9));
  }
  const auto second = open(6, {1}).value();
  EXPECT_TRUE(second.is_continued());
  EXPECT_EQ(second.key().epoch, Epoch{5}) << "the file's key, not the new one";
  EXPECT_EQ(second.key().session.bytes(), "s\"\n");
  EXPECT_THAT(second.prompt(), ElementsAre(1, 40));
  EXPECT_THAT(second.tokens(), ElementsAre(1, 40, 7, 9));
  EXPECT_EQ(second.written(), 2u);
}

TEST_F(TranscriptFile, ALineThatWasCutOffCountsAsNotWritten) {
  ASSERT_TRUE(open()->add(7));
  const std::string whole = text();
  for (std::size_t cut = 1; cut <= 2; ++cut) {
    write(whole.substr(0, whole.size() - cut));
    auto reopened = open().value();
    EXPECT_EQ(reopened.written(), 0u);
    ASSERT_TRUE(reopened.add(8));
    EXPECT_THAT(open()->tokens(), ElementsAre(1, 40, 8));
  }
}

TEST_F(TranscriptFile, AFileThatIsNoneIsRefusedAndKept) {
  for (const char* content :
       {"", "my notes", "my notes\nall of them\n", "{}\n",
        "{\"session\":\"\",\"epoch\":1,\"model\":\"model\",\"prompt\":[]}\n",
        "{\"session\":\"s\",\"epoch\":-1,\"model\":\"model\",\"prompt\":[1]}\n",
        "{\"session\":\"s\",\"epoch\":1,\"model\":\"model\",\"prompt\":[-1]}\n"}) {
    write(content);
    EXPECT_THAT(refusal(), HasSubstr("transcript")) << content;
    EXPECT_EQ(text(), content);
  }
  write("{\"session\":\"s\",\"epoch\":1,\"model\":\"other\",\"prompt\":[1]}\n");
  EXPECT_THAT(refusal(), HasSubstr("it is of model \"other\", not model"));
  write("{\"session\":\"s\",\"epoch\":1,\"model\":\"model\",\"prompt\":[1]}\n5\nx\n");
  EXPECT_THAT(refusal(), HasSubstr("line 3 is no token"));
}

TEST_F(TranscriptFile, WithoutAPathNothingIsKept) {
  auto transcript = Transcript::open({}, {key_of("s"), "model", {1}}).value();
  ASSERT_TRUE(transcript.add(7));
  EXPECT_THAT(transcript.tokens(), ElementsAre(1, 7));
  EXPECT_FALSE(Transcript::open(folder.path() / "no" / "folder", {key_of("s"), "model", {1}}));
}

}  // namespace
}  // namespace hotkv::shard
