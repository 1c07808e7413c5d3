// weight_at() of packed formats, against numbers computed by hand from the formulas in
// kernels/linear.h.
#include <gtest/gtest.h>

#include <array>
#include <cstring>
#include <vector>

#include "kernels/ref/linear.h"

namespace lathe {
namespace {

template <class T>
const std::byte* bytes_at(const T& list) {
  return reinterpret_cast<const std::byte*>(list.data());
}

// Two rows of 64 columns in groups of 32.
TEST(WeightAt, Int4SubtractsTheZeroAndScales) {
  std::vector<std::uint8_t> codes(64, 0x88);
  codes[0] = 0xf1;   // row 0: columns 0 and 1 are 1 and 15
  codes[63] = 0x07;  // row 1: columns 62 and 63 are 7 and 0
  const std::array<bf16, 4> scales = {to_bf16(0.5f), to_bf16(2.f), to_bf16(3.f), to_bf16(-4.f)};
  const std::array<std::uint8_t, 4> zeros = {0, 8, 8, 16};
  WeightView w{bytes_at(codes), DType::u4, 2, 64};
  w.groups = {bytes_at(scales), DType::bf16, 32, nullptr};
  EXPECT_EQ(weight_at(w, 0, 0), -3.5f);
  EXPECT_EQ(weight_at(w, 0, 1), 3.5f);
  EXPECT_EQ(weight_at(w, 0, 32), 0.f);
  EXPECT_EQ(weight_at(w, 1, 62), 4.f);
  EXPECT_EQ(weight_at(w, 1, 63), 32.f);
  w.groups.zeros = zeros.data();
  EXPECT_EQ(weight_at(w, 0, 1), 7.5f);
  EXPECT_EQ(weight_at(w, 1, 62), 36.f);
  const std::array<f16, 4> halves = {to_f16(0.5f), to_f16(2.f), to_f16(3.f), to_f16(0.25f)};
  w.groups.data = bytes_at(halves);
  w.groups.dtype = DType::f16;
  EXPECT_EQ(weight_at(w, 1, 62), -2.25f);
}

// e2m1 codes 2 and 13 are 1 and -3; e4m3 codes 0x38 and 0x40 are 1 and 2.
TEST(WeightAt, Nvfp4HasAScalePer16ColumnsAndAFactor) {
  std::vector<std::uint8_t> codes(16, 0xd2);
  const std::array<std::uint8_t, 2> scales = {0x38, 0x40};
  const float factor = 0.25f;
  WeightView w{bytes_at(codes), DType::e2m1, 1, 32, &factor};
  w.groups = {bytes_at(scales), DType::e4m3, 16, nullptr};
  EXPECT_EQ(weight_at(w, 0, 0), 0.25f);
  EXPECT_EQ(weight_at(w, 0, 15), -0.75f);
  EXPECT_EQ(weight_at(w, 0, 16), 0.5f);
  EXPECT_EQ(weight_at(w, 0, 31), -1.5f);
}

TEST(WeightAt, Fp8HasAScalePerRow) {
  const std::array<std::uint8_t, 4> codes = {0x38, 0xb8, 0x40, 0x30};  // 1, -1, 2, 0.5
  const std::array<float, 2> scales = {3, 0.1f};
  WeightView w{bytes_at(codes), DType::e4m3, 2, 2, scales.data()};
  w.scale_rows = true;
  EXPECT_EQ(weight_at(w, 0, 1), -3.f);
  EXPECT_EQ(weight_at(w, 1, 0), 0.2f);
  EXPECT_EQ(weight_at(w, 1, 1), 0.05f);
}

// Column k of the weight multiplies column columns[k] of x.
TEST(WeightAt, ColumnsReorderTheInput) {
  std::vector<std::uint8_t> codes(16, 0x88);
  codes[0] = 0x98;  // column 1 is 1, the others 0
  const std::array<bf16, 1> scales = {to_bf16(1.f)};
  std::vector<std::int32_t> columns(32);
  for (int i = 0; i < 32; ++i) columns[static_cast<std::size_t>(i)] = 31 - i;
  WeightView w{bytes_at(codes), DType::u4, 1, 32};
  w.groups = {bytes_at(scales), DType::bf16, 32, nullptr};
  w.columns = columns.data();
  std::vector<float> x(32), out(1);
  x[30] = 5;
  const Product p{{reinterpret_cast<const std::byte*>(x.data()), DType::f32, 1, 32, 32},
                  w,
                  {reinterpret_cast<std::byte*>(out.data()), DType::f32, 1, 1, 1}};
  ref_matmul({&p, 1});
  EXPECT_EQ(out[0], 5.f);
}

}  // namespace
}  // namespace lathe
