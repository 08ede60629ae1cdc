#include <hotkv/error.hpp>

#include <gtest/gtest.h>

#include <cerrno>
#include <set>

namespace hotkv {
namespace {

constexpr std::uint32_t kCodeCount = 31;

TEST(ErrorCode, EachHasItsOwnNameAndComesBackFromIt) {
  std::set<std::string_view> names;
  for (std::uint32_t number = 1; number <= kCodeCount; ++number) {
    const auto code = error_code_from_number(number);
    ASSERT_TRUE(code.has_value()) << number;
    EXPECT_EQ(static_cast<std::uint32_t>(*code), number);
    const std::string_view name = to_string(*code);
    EXPECT_TRUE(names.insert(name).second) << name << " stands for two codes";
    EXPECT_EQ(error_code_from_name(name), code);
    EXPECT_EQ(name.find_first_not_of("abcdefghijklmnopqrstuvwxyz-"), std::string_view::npos)
        << name;
  }
}

TEST(ErrorCode, NumbersOutsideTheListAreNoCodes) {
  for (const std::uint32_t number : {0u, kCodeCount + 1, kCodeCount + 2, 255u, 0xffff'ffffu}) {
    EXPECT_EQ(error_code_from_number(number), std::nullopt) << number;
    EXPECT_EQ(to_string(static_cast<ErrorCode>(number)), "unknown-error") << number;
  }
}

TEST(ErrorCode, TextsOutsideTheListAreNoCodes) {
  for (const std::string_view name : {"", "unknown-error", "budget_exceeded", "Budget-exceeded"}) {
    EXPECT_EQ(error_code_from_name(name), std::nullopt) << name;
  }
}

TEST(ErrorCode, NumbersOnTheWireNeverMove) {
  EXPECT_EQ(static_cast<std::uint32_t>(ErrorCode::invalid_argument), 1u);
  EXPECT_EQ(static_cast<std::uint32_t>(ErrorCode::incompatible_recipe), 8u);
  EXPECT_EQ(static_cast<std::uint32_t>(ErrorCode::budget_exceeded), 13u);
  EXPECT_EQ(static_cast<std::uint32_t>(ErrorCode::daemon_unavailable), 20u);
  EXPECT_EQ(static_cast<std::uint32_t>(ErrorCode::configuration_error), 30u);
  EXPECT_EQ(static_cast<std::uint32_t>(ErrorCode::shard_replaced), 31u);
}

TEST(Error, MessageSaysWhatOnWhatAndWhy) {
  const Error error{ErrorCode::budget_exceeded, "append", "\"a\"", "needed 4096 bytes"};
  EXPECT_EQ(error.message(), "append \"a\": budget-exceeded: needed 4096 bytes");
}

TEST(Error, MessageLeavesOutWhatIsNotKnown) {
  const Error error{ErrorCode::not_attached, "open", {}, {}};
  EXPECT_EQ(error.message(), "open: not-attached");
}

TEST(Error, MessageEndsWithTheSystemsText) {
  const Error error = system_error("bind", "control.sock", EACCES);
  EXPECT_EQ(error.code, ErrorCode::system_error);
  EXPECT_EQ(error.message(), "bind control.sock: system-error: Permission denied");
}

TEST(Error, SystemErrorReadsErrnoUnlessOneIsGiven) {
  errno = ENOENT;
  EXPECT_EQ(system_error("open", "x").os_errno, ENOENT);
  errno = ENOENT;
  EXPECT_EQ(system_error("open", "x", EBUSY).os_errno, EBUSY);
}

}  // namespace
}  // namespace hotkv
