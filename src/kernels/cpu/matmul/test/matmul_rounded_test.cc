// Rounding of x to e4m3 against a search among all codes.
#include "kernels/cpu/matmul/matmul_rounded.h"

#include <gtest/gtest.h>

#include <cmath>
#include <random>
#include <vector>

namespace lathe {
namespace {

// The nearest finite value of e4m3 (sign, 4 bits of exponent with bias 7, 3 of mantissa), ties to
// the even code.
double nearest_e4m3(double x) {
  double best = 0, least = INFINITY;
  for (int code = 0; code < 0x7f; ++code) {
    const int exponent = code >> 3, mantissa = code & 7;
    const double value =
        exponent == 0 ? std::ldexp(mantissa, -9) : std::ldexp(8 + mantissa, exponent - 10);
    const double distance = std::abs(std::abs(x) - value);
    if (distance < least || (distance == least && code % 2 == 0)) {
      least = distance;
      best = value;
    }
  }
  return std::copysign(best, x);
}

TEST(CpuMatmulRounded, RoundsBlocksOf128) {
  const unsigned seed = std::random_device()();
  std::mt19937 rng{seed};
  std::normal_distribution<float> normal;
  constexpr std::int64_t rows = 3, cols = 300;
  std::vector<float> x(rows * cols), got(rows * cols);
  for (float& v : x) v = normal(rng);
  for (std::int64_t i = 0; i < 128; ++i) x[static_cast<std::size_t>(cols + i)] = 0;
  const RowsView from{reinterpret_cast<const std::byte*>(x.data()), DType::f32, rows, cols, cols};
  const MutableRowsView to{reinterpret_cast<std::byte*>(got.data()), DType::f32, rows, cols, cols};
  for (const MatmulPrecision precision : {MatmulPrecision::fp8, MatmulPrecision::fp8_pow2}) {
    cpu_round_x({}, from, DType::e4m3, precision, to);
    for (std::int64_t r = 0; r < rows; ++r) {
      for (std::int64_t c = 0; c < cols; ++c) {
        float most = 0;
        for (std::int64_t i = c / 128 * 128; i < std::min(cols, c / 128 * 128 + 128); ++i) {
          most =
              std::max(most, std::abs(to_f32(to_bf16(x[static_cast<std::size_t>(r * cols + i)]))));
        }
        float scale = most == 0 ? 1.f : most / 448;
        if (precision == MatmulPrecision::fp8_pow2) scale = std::exp2(std::ceil(std::log2(scale)));
        const float v = to_f32(to_bf16(x[static_cast<std::size_t>(r * cols + c)]));
        const double want = nearest_e4m3(double{v / scale}) * double{scale};
        ASSERT_FLOAT_EQ(got[static_cast<std::size_t>(r * cols + c)], static_cast<float>(want))
            << "row " << r << ", col " << c << ", seed " << seed;
      }
    }
    // With other weights, x is rounded to bf16 only.
    cpu_round_x({}, from, DType::bf16, precision, to);
    for (std::size_t i = 0; i < x.size(); ++i) ASSERT_EQ(got[i], to_f32(to_bf16(x[i])));
  }
}

}  // namespace
}  // namespace lathe
