#include "kernels/ref/merge.h"

#include <gtest/gtest.h>

#include <cmath>
#include <vector>

#include "kernels/ref/test/test_util.h"

namespace lathe {
namespace {

using ref_test::kInf;
using ref_test::kNaN;
using Row = std::vector<double>;

TEST(MergeStates, EqualWeightsGiveTheMean) {
  Row out(2, kNaN);
  EXPECT_DOUBLE_EQ(merge_states(Row{1, 2}, 0.5, Row{3, 6}, 0.5, out), 0.5 + std::log(2.0));
  EXPECT_EQ(out, (Row{2, 4}));
}

TEST(MergeStates, WeightsAreTheExponentials) {
  Row out(1);
  // e^(ln 3) = 3 parts of 8 and one part of 4.
  EXPECT_DOUBLE_EQ(merge_states(Row{8}, std::log(3.0), Row{4}, 0, out), std::log(4.0));
  EXPECT_DOUBLE_EQ(out[0], 7.0);
}

TEST(MergeStates, LargeLogitsDoNotOverflow) {
  Row out(1);
  EXPECT_DOUBLE_EQ(merge_states(Row{1}, 5000, Row{3}, 5000, out), 5000 + std::log(2.0));
  EXPECT_EQ(out[0], 2.0);
  EXPECT_EQ(merge_states(Row{1}, -5000, Row{3}, 5000, out), 5000.0);
  EXPECT_EQ(out[0], 3.0);
}

TEST(MergeStates, EmptyPartIsNotRead) {
  Row out(2, kNaN);
  EXPECT_EQ(merge_states(Row{kNaN, 9}, -kInf, Row{3, 6}, -7, out), -7.0);
  EXPECT_EQ(out, (Row{3, 6}));
  EXPECT_EQ(merge_states(Row{3, 6}, 2, Row{kNaN, kNaN}, -kInf, out), 2.0);
  EXPECT_EQ(out, (Row{3, 6}));
}

TEST(MergeStates, BothEmptyStayEmpty) {
  Row out(2, kNaN);
  EXPECT_EQ(merge_states(Row{0, 0}, -kInf, Row{0, 0}, -kInf, out), -kInf);
  EXPECT_EQ(out, (Row{0, 0}));
}

TEST(MergeStates, OnlyMinusInfinityMeansEmpty) {
  Row out(1);
  EXPECT_TRUE(std::isnan(merge_states(Row{1}, kInf, Row{3}, 0, out)));
  EXPECT_TRUE(std::isnan(merge_states(Row{1}, kNaN, Row{3}, 0, out)));
  EXPECT_TRUE(std::isnan(merge_states(Row{1}, 0, Row{3}, kNaN, out)));
  EXPECT_TRUE(std::isnan(out[0]));
}

TEST(MergeStates, InPlaceOnEitherSide) {
  Row a{1}, b{3};
  merge_states(a, 0, b, 0, a);
  EXPECT_EQ(a, Row{2});
  EXPECT_EQ(merge_states(a, -kInf, b, 4, b), 4.0);
  EXPECT_EQ(b, Row{3});
}

TEST(ApplySink, EqualToTheLseHalves) {
  Row out{2, -4};
  apply_sink(out, 3.5, 3.5);
  EXPECT_EQ(out, (Row{1, -2}));
}

TEST(ApplySink, Infinities) {
  Row out{2};
  apply_sink(out, 1, -kInf);
  EXPECT_EQ(out, Row{2});
  apply_sink(out, 1, kInf);
  EXPECT_EQ(out, Row{0});
}

TEST(ApplySink, FarApartIsNoNaN) {
  Row out{2};
  apply_sink(out, 0, -5000);
  EXPECT_EQ(out, Row{2});
  apply_sink(out, 0, 5000);
  EXPECT_EQ(out, Row{0});
}

TEST(ApplySink, NoKeyStaysZero) {
  for (const double sink : {-kInf, 0.0, kInf}) {
    Row out{0};
    apply_sink(out, -kInf, sink);
    EXPECT_EQ(out, Row{0});
  }
}

}  // namespace
}  // namespace lathe
