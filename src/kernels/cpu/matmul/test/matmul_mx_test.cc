// GEMMs with MXFP4 weights on every SIMD target, against double precision.
#include "layout/simd_targets.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <random>
#include <vector>

#include "base/test_scale.h"
#include "hwy/targets.h"
#include "kernels/cpu/matmul/matmul_bf16.h"
#include "kernels/cpu/matmul/test/matmul_cases_test_util.h"

namespace lathe {
namespace {

void check(MatmulPrecision precision, std::int64_t m, std::int64_t n, std::int64_t k) {
  std::mt19937 rng(test_seed(static_cast<std::uint32_t>(m * 7 + n * 3 + k)));
  GuardedMemory memory;
  WeightView w;
  w.dtype = DType::e2m1;
  w.rows = n;
  w.cols = k;
  w.data = memory.random_bytes(rng, bytes_of(DType::e2m1, n * k), 0, 256);
  // From 2^-11 to 2^4.
  w.mx_scales = reinterpret_cast<const ue8m0*>(memory.random_bytes(rng, n * k / kMxBlock, 116, 16));
  check_product(rng, precision, m, w, precision == MatmulPrecision::bf16 ? 0x1p-9 : 0);
}

void check_shapes(MatmulPrecision precision) {
  for (const std::int64_t k : {32, 64, 96, 128, 160, 1024, 1120, 2880}) {
    for (const std::int64_t m : {1, 2, 3, 4, 6, 7, 9, 16, 20}) {
      const std::int64_t n = k % 3 == 0 ? 8 : 19;
      check(precision, m, n, k);
      if (testing::Test::HasFatalFailure()) return;
    }
  }
}

TEST(MatmulMx, AgreesWithRefOnEveryTarget) {
  for (const auto target : hwy::SupportedAndGeneratedTargets()) {
    SCOPED_TRACE(hwy::TargetName(target));
    hwy::SetSupportedTargetsForTest(target);
    check_shapes(MatmulPrecision::f32);
    if (HasFatalFailure()) break;
  }
  hwy::SetSupportedTargetsForTest(0);
}

TEST(MatmulMx, AgreesWithRefInBf16) {
  if (!cpu_has_bf16_dot()) GTEST_SKIP() << "this CPU has no dot products of bf16 pairs";
  check_shapes(MatmulPrecision::bf16);
}

// A row of a unit matrix selects one weight: every code with every scale that a checkpoint may
// have.
TEST(MatmulMx, WidensEveryCodeAndScaleExactly) {
  constexpr std::int64_t kCols = 8 * kMxBlock;  // 8 scales, 32 of which make all of 0 to 245
  std::vector<std::byte> codes(32 * kCols / 2);
  std::vector<ue8m0> scales(32 * 8);
  for (std::size_t i = 0; i < codes.size(); ++i) codes[i] = static_cast<std::byte>(i * 37 % 256);
  for (std::size_t i = 0; i < scales.size(); ++i) {
    scales[i].bits = static_cast<std::uint8_t>(std::min<std::size_t>(i, 245));
  }
  WeightView w;
  w.data = codes.data();
  w.dtype = DType::e2m1;
  w.rows = 32;
  w.cols = kCols;
  w.mx_scales = scales.data();
  for (const MatmulPrecision precision : {MatmulPrecision::f32, MatmulPrecision::bf16}) {
    if (precision == MatmulPrecision::bf16 && !cpu_has_bf16_dot()) continue;
    for (const std::int64_t m : {1, 5, 30}) {
      for (std::int64_t first = 0; first < kCols; first += m) {
        MatmulRows x(m, kCols), out(m, 32);
        for (std::int64_t t = 0; t < m; ++t) {
          x.data[static_cast<std::size_t>(t * kCols + (first + t) % kCols)] = 1;
        }
        cpu_multiply(precision, {x.view(0, m), w, out.out(0, m)});
        for (std::int64_t t = 0; t < m; ++t) {
          for (std::int64_t i = 0; i < 32; ++i) {
            const float want = weight_at(w, i, (first + t) % kCols);
            // The instruction reads subnormal numbers as zeros and produces none.
            const bool lost = precision == MatmulPrecision::bf16 && std::abs(want) < 0x1p-126f;
            ASSERT_EQ(out.data[static_cast<std::size_t>(t * 32 + i)], lost ? 0 : want)
                << name(precision) << " row " << i << " col " << (first + t) % kCols;
          }
        }
      }
    }
  }
}

}  // namespace
}  // namespace lathe
