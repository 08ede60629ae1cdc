#include "daemon/human_units.hpp"

#include <gtest/gtest.h>

#include <limits>

namespace hotkv {
namespace {

using std::chrono::milliseconds;

TEST(HumanUnits, SizesWithoutUnitAreBytes) {
  EXPECT_EQ(parse_size_bytes("0"), 0u);
  EXPECT_EQ(parse_size_bytes("1048576"), 1048576u);
  EXPECT_EQ(parse_size_bytes("1048576B"), 1048576u);
}

TEST(HumanUnits, SingleLettersAndIecUnitsArePowersOf1024) {
  EXPECT_EQ(parse_size_bytes("16G"), std::uint64_t{16} << 30);
  EXPECT_EQ(parse_size_bytes("16GiB"), std::uint64_t{16} << 30);
  EXPECT_EQ(parse_size_bytes("512M"), std::uint64_t{512} << 20);
  EXPECT_EQ(parse_size_bytes("3KiB"), 3072u);
  EXPECT_EQ(parse_size_bytes("1T"), std::uint64_t{1} << 40);
}

TEST(HumanUnits, UnitsWithPlainBArePowersOf1000) {
  EXPECT_EQ(parse_size_bytes("16GB"), 16'000'000'000u);
  EXPECT_EQ(parse_size_bytes("2MB"), 2'000'000u);
  EXPECT_EQ(parse_size_bytes("7KB"), 7'000u);
}

TEST(HumanUnits, SizesThatAreNearlyRightAreRefusedWithTheirText) {
  for (const std::string text : {"",    " ",   "8 GB", "8 GB garbage", "8GB garbage", "8Gi",  "8g",
                                 "8gb", "-1",  "+1",   "8e9",          "1.5G",        "0x10", "G",
                                 "8GG", "8G ", " 8G",  "8G\n",         "1,000",       "8K8"}) {
    const auto size_bytes = parse_size_bytes(text);
    ASSERT_FALSE(size_bytes.has_value()) << text << " was read as " << *size_bytes;
    EXPECT_EQ(size_bytes.error().code, ErrorCode::configuration_error);
    EXPECT_FALSE(size_bytes.error().cause.empty()) << text;
  }
  EXPECT_EQ(parse_size_bytes("8 GB").error().object, "\"8 GB\"");
}

TEST(HumanUnits, AZeroByteInASizeIsNotItsEnd) {
  EXPECT_FALSE(parse_size_bytes(std::string_view("8G\0", 3)).has_value());
}

TEST(HumanUnits, TheLargestSizeIsReadAndOneMoreIsRefused) {
  EXPECT_EQ(parse_size_bytes("18446744073709551615"), std::numeric_limits<std::uint64_t>::max());
  EXPECT_FALSE(parse_size_bytes("18446744073709551616").has_value());
  EXPECT_EQ(parse_size_bytes("16777215T"), std::uint64_t{16777215} << 40);
  EXPECT_FALSE(parse_size_bytes("16777216T").has_value());
}

TEST(HumanUnits, DurationsAddTheirParts) {
  EXPECT_EQ(parse_duration("30m"), milliseconds(1'800'000));
  EXPECT_EQ(parse_duration("90s"), milliseconds(90'000));
  EXPECT_EQ(parse_duration("1h30m"), milliseconds(5'400'000));
  EXPECT_EQ(parse_duration("250ms"), milliseconds(250));
  EXPECT_EQ(parse_duration("2d3h4m5s6ms"), milliseconds(183'845'006));
  EXPECT_EQ(parse_duration("0s"), milliseconds(0));
}

TEST(HumanUnits, DurationsThatAreNearlyRightAreRefused) {
  for (const std::string text : {"", "90", "1h30", "30 m", "30min", "m", "-5s", "1.5h", "30M",
                                 "5s5s", "30m1h", "5ms1s", "off", "1h30m ", "1e3s"}) {
    const auto duration = parse_duration(text);
    ASSERT_FALSE(duration.has_value()) << text << " was read as " << duration->count() << " ms";
    EXPECT_EQ(duration.error().code, ErrorCode::configuration_error);
  }
}

TEST(HumanUnits, DurationsThatOverflowAreRefused) {
  EXPECT_EQ(parse_duration("9223372036854775807ms"),
            milliseconds(std::numeric_limits<std::int64_t>::max()));
  EXPECT_FALSE(parse_duration("9223372036854775808ms").has_value());
  EXPECT_FALSE(parse_duration("9223372036854775s808ms").has_value());
  EXPECT_FALSE(parse_duration("99999999999999999999d").has_value());
}

TEST(HumanUnits, WhatIsFormattedParsesBack) {
  for (const std::uint64_t size_bytes :
       {std::uint64_t{0}, std::uint64_t{1}, std::uint64_t{1500}, std::uint64_t{4096},
        (std::uint64_t{16} << 30) + 1, std::numeric_limits<std::uint64_t>::max()}) {
    EXPECT_EQ(parse_size_bytes(format_size_bytes(size_bytes)), size_bytes);
  }
  for (const std::int64_t count : {0LL, 1LL, 999LL, 1000LL, 5'400'000LL, 183'845'006LL}) {
    EXPECT_EQ(parse_duration(format_duration(milliseconds(count))), milliseconds(count));
  }
  EXPECT_EQ(format_size_bytes(std::uint64_t{16} << 30), "16G");
  EXPECT_EQ(format_size_bytes(1500), "1500");
  EXPECT_EQ(format_duration(milliseconds(5'400'000)), "1h30m");
}

}  // namespace
}  // namespace hotkv
