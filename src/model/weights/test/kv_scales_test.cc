#include "model/weights/kv_scales.h"

#include <gtest/gtest.h>

#include <cmath>
#include <random>

namespace lathe {
namespace {

TEST(KvScales, LeaveRoomForTwiceTheLargest) {
  EXPECT_EQ(scale_for(0), 1);
  EXPECT_EQ(scale_for(224), 1);
  EXPECT_EQ(scale_for(std::nextafter(224.0f, 300.0f)), 2);
  const std::uint32_t seed = std::random_device{}();
  SCOPED_TRACE(seed);
  std::mt19937 random(seed);
  std::uniform_real_distribution<float> exponent(-100, 100);
  for (int i = 0; i < 10000; ++i) {
    const float largest = std::exp2(exponent(random));
    const float scale = scale_for(largest);
    int unused = 0;
    EXPECT_EQ(std::frexp(scale, &unused), 0.5f) << largest;
    EXPECT_LE(2 * double{largest}, 448 * double{scale}) << largest;
    EXPECT_GT(2 * double{largest}, 448 * double{scale} / 2) << largest;
  }
}

}  // namespace
}  // namespace lathe
