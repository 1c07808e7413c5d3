#include "base/test_scale.h"

#include <gtest/gtest.h>

#include <set>

namespace lathe {
namespace {

using test_scale_detail::mix;
using test_scale_detail::parse;

TEST(TestScale, ParsesWholeNumbersAlone) {
  EXPECT_EQ(parse("1", 1, 1000), 1u);
  EXPECT_EQ(parse("020", 1, 1000), 20u);  // a day of the year from date +%j
  EXPECT_EQ(parse("4294967295", 0, 4294967295u), 4294967295u);
  for (const char* bad : {"", "0", "-1", "+1", " 1", "1 ", "1.5", "x", "1001", "4294967297"}) {
    EXPECT_EQ(parse(bad, 1, 1000), std::nullopt) << bad;
  }
}

TEST(TestScale, NeighbouringSeedsDiffer) {
  std::set<std::uint32_t> seen;
  for (std::uint32_t base = 0; base < 50; ++base) {
    for (std::uint32_t seed = 0; seed < 50; ++seed) seen.insert(mix(base, seed));
  }
  EXPECT_EQ(seen.size(), 2500u);
}

TEST(TestScale, RepeatsAListInOrder) {
  const auto list = scaled({3, 5});
  ASSERT_EQ(list.size(), 2u * static_cast<std::size_t>(test_scale()));
  for (std::size_t i = 0; i < list.size(); ++i) EXPECT_EQ(list[i], i % 2 == 0 ? 3 : 5);
}

TEST(TestScaleDeathTest, NamesAnUnusableSetting) {
  ASSERT_EQ(setenv("LATHE_TEST_UNUSABLE", "ten", 1), 0);
  EXPECT_EXIT(test_scale_detail::from_environment("LATHE_TEST_UNUSABLE", 1, 1000),
              ::testing::ExitedWithCode(2),
              "LATHE_TEST_UNUSABLE: wanted an integer from 1 to 1000, got \"ten\"");
}

}  // namespace
}  // namespace lathe
