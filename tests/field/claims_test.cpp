// Dead clients, claims and leaks.

#include <gtest/gtest.h>

#include "tests/support/under_fire.hpp"

namespace hotkv::testing {
namespace {

class Claims : public UnderFire {};

TEST_F(Claims, AWorkerIsServed) {
  EXPECT_TRUE(honest_->goes_on());
}

}  // namespace
}  // namespace hotkv::testing
