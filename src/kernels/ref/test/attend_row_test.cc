#include "kernels/ref/attend_row.h"

#include <gtest/gtest.h>

#include <cmath>
#include <vector>

#include "kernels/ref/test/test_util.h"

namespace lathe {
namespace {

using ref_test::kInf;
using ref_test::kNaN;
using Row = std::vector<double>;

TEST(AttendRow, NoKey) {
  Row out(2, kNaN);
  EXPECT_EQ(attend_row(Row{1}, {}, {}, 0, 1, out), -kInf);
  EXPECT_EQ(out, (Row{0, 0}));
}

TEST(AttendRow, OneKeyGivesItsValueAndItsScore) {
  const Row key{2, 3};
  const Row value{7, -1, 0.5};
  Row out(3, kNaN);
  EXPECT_EQ(attend_row(Row{5, 1}, {key, 0, 2}, {value, 0, 3}, 1, 0.5, out), 6.5);
  EXPECT_EQ(out, value);
}

TEST(AttendRow, WeightsAreTheExponentialsOfTheScores) {
  // Scores ln 1 and ln 3 weigh values 4 and 8 by 1/4 and 3/4. Keys and values share a buffer.
  const Row rows{std::log(1.0), 4, std::log(3.0), 8};
  Row out(1);
  EXPECT_DOUBLE_EQ(attend_row(Row{1}, {rows, 0, 2}, {rows, 1, 2}, 2, 1, out), std::log(4.0));
  EXPECT_DOUBLE_EQ(out[0], 7);
}

TEST(AttendRow, LargeScoresDoNotOverflow) {
  const Row keys{1, 1, -1};
  const Row values{2, 4, 100};
  Row out(1);
  EXPECT_DOUBLE_EQ(attend_row(Row{9000}, {keys, 0, 1}, {values, 0, 1}, 3, 1, out),
                   9000 + std::log(2.0));
  EXPECT_EQ(out[0], 3);
  EXPECT_DOUBLE_EQ(attend_row(Row{-9000}, {keys, 0, 1}, {values, 0, 1}, 2, 1, out),
                   -9000 + std::log(2.0));
}

TEST(AttendRow, NaNPassesThrough) {
  const Row keys{1, kNaN};
  const Row values{1, 1};
  Row out(1);
  EXPECT_TRUE(std::isnan(attend_row(Row{1}, {keys, 0, 1}, {values, 0, 1}, 2, 1, out)));
  EXPECT_TRUE(std::isnan(out[0]));
  const Row far{0, -9000};
  // A NaN value makes the result NaN even if its key's weight underflows to 0.
  EXPECT_FALSE(std::isnan(attend_row(Row{1}, {far, 0, 1}, {keys, 0, 1}, 2, 1, out)));
  EXPECT_TRUE(std::isnan(out[0]));
}

TEST(AttendRow, OnlyScoresOfMinusInfinityAreNoKey) {
  const Row keys{-kInf, -kInf};
  const Row values{1, 2};
  Row out(1, kNaN);
  EXPECT_EQ(attend_row(Row{1}, {keys, 0, 1}, {values, 0, 1}, 2, 1, out), -kInf);
  EXPECT_EQ(out[0], 0);
}

}  // namespace
}  // namespace lathe
