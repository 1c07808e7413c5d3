#include "kernels/ref/rows_io.h"

#include <gtest/gtest.h>

#include <vector>

#include "kernels/ref/test/test_util.h"

namespace lathe {
namespace {

using ref_test::Matrix;

TEST(RowsIo, ReadsEveryFormatWithScaleAndStride) {
  Matrix<float> f32(2, 3);
  f32.at(1, 0) = 1.5f;
  f32.at(1, 1) = -2;
  RowsView narrow = f32.view();
  narrow.cols = 2;  // the stride stays 3
  std::vector<double> row(2);
  read_row(narrow, 1, 2.0, row);
  EXPECT_EQ(row, (std::vector<double>{3, -4}));

  const Matrix<bf16> wide(1, 2, bf16{0x3fc0});
  read_row(wide.view(), 0, 2.0, row);
  EXPECT_EQ(row, (std::vector<double>{3, 3}));

  const Matrix<f16> half(1, 2, f16{0x3e00});
  read_row(half.view(), 0, 2.0, row);
  EXPECT_EQ(row, (std::vector<double>{3, 3}));

  const Matrix<e4m3> fp8(1, 2, e4m3{0x40});
  read_row(fp8.view(), 0, 0.25, row);
  EXPECT_EQ(row, (std::vector<double>{0.5, 0.5}));
}

TEST(RowsIo, WritesEveryFormatIntoItsRowOnly) {
  const std::vector<double> values{1.0 + 0x1p-30, -0.5};
  Matrix<double> f64(2, 2, 7);
  write_row(f64.mutable_view(), 1, values);
  EXPECT_EQ(f64.data, (std::vector<double>{7, 7, 1.0 + 0x1p-30, -0.5}));
  Matrix<float> f32(2, 2, 7);
  write_row(f32.mutable_view(), 0, values);
  EXPECT_EQ(f32.data, (std::vector<float>{1, -0.5f, 7, 7}));
  Matrix<bf16> narrow(1, 2);
  write_row(narrow.mutable_view(), 0, values);
  EXPECT_EQ(narrow.data, (std::vector<bf16>{{0x3f80}, {0xbf00}}));
  Matrix<f16> half(1, 2);
  write_row(half.mutable_view(), 0, values);
  EXPECT_EQ(half.data, (std::vector<f16>{{0x3c00}, {0xb800}}));
}

}  // namespace
}  // namespace lathe
