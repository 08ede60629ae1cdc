#include "daemon/server/admin_pages.hpp"

#include <gtest/gtest.h>

namespace hotkv::server {
namespace {

TEST(AdminPages, AQueryIsOneParameterPercentDecoded) {
  EXPECT_EQ(query_value("", "session"), "");
  EXPECT_EQ(query_value("session=a", "session"), "a");
  EXPECT_EQ(query_value("session=", "session"), "");
  EXPECT_EQ(query_value("session=a%20b%2Fc%2fd", "session"), "a b/c/d");
  EXPECT_EQ(query_value("session=%00%ff", "session"), std::string("\0\xff", 2));
  EXPECT_EQ(query_value("session=a+b=c", "session"), "a+b=c");
}

TEST(AdminPages, AnythingElseIsRefused) {
  for (const char* query : {"session", "sessio=a", "session2=a", "session=a&limit=1", "&session=a",
                            "session=%", "session=%4", "session=%4g", "session=a%"}) {
    const auto value = query_value(query, "session");
    ASSERT_FALSE(value.has_value()) << query;
    EXPECT_EQ(value.error().code, ErrorCode::invalid_argument);
  }
}

}  // namespace
}  // namespace hotkv::server
