#include "attn/lse_convention.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>

namespace lathe {
namespace {

TEST(LseConvention, BaseAndRowsWithoutKeys) {
  const double inf = std::numeric_limits<double>::infinity();
  for (const bool plus : {false, true}) {
    EXPECT_EQ(by_convention({.base_2 = false, .empty_plus_inf = plus}, 0.75), 0.75);
    for (const double log2 : {-40.0, -0.5, 0.0, 3.0, 1000.0}) {
      EXPECT_DOUBLE_EQ(
          by_convention({.base_2 = true, .empty_plus_inf = plus}, log2 * std::log(2.0)), log2);
    }
    for (const bool base_2 : {false, true}) {
      const LseConvention c{base_2, plus};
      EXPECT_EQ(by_convention(c, -inf), plus ? inf : -inf);
      EXPECT_EQ(by_convention(c, inf), inf);
      EXPECT_TRUE(std::isnan(by_convention(c, std::numeric_limits<double>::quiet_NaN())));
    }
  }
}

}  // namespace
}  // namespace lathe
