// GEMMs with MXFP4 weights on every SIMD target, against double precision.
#include "layout/simd_targets.h"

#include <gtest/gtest.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <random>
#include <vector>

#include "base/test_scale.h"
#include "hwy/targets.h"
#include "kernels/cpu/matmul/matmul.h"
#include "kernels/cpu/matmul/matmul_bf16.h"
#include "kernels/ref/linear.h"

namespace lathe {
namespace {

/// A weight with codes and scales that end at the end of readable memory.
class GuardedWeight {
 public:
  GuardedWeight(std::mt19937& rng, std::int64_t rows, std::int64_t cols) {
    view.dtype = DType::e2m1;
    view.rows = rows;
    view.cols = cols;
    view.data = random_bytes(rng, bytes_of(DType::e2m1, rows * cols), 0, 256);
    // From 2^-11 to 2^4.
    view.mx_scales =
        reinterpret_cast<const ue8m0*>(random_bytes(rng, rows * cols / kMxBlock, 116, 16));
  }
  GuardedWeight(const GuardedWeight&) = delete;
  ~GuardedWeight() {
    for (const auto& [at, size] : mappings_) munmap(at, size);
  }

  WeightView view;

 private:
  std::byte* random_bytes(std::mt19937& rng, std::int64_t n, unsigned first, unsigned count) {
    const auto page = static_cast<std::size_t>(sysconf(_SC_PAGESIZE));
    const std::size_t whole = (static_cast<std::size_t>(n) + page - 1) / page * page;
    void* at =
        mmap(nullptr, whole + page, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    EXPECT_NE(at, MAP_FAILED);
    mappings_.emplace_back(at, whole + page);
    auto* end = static_cast<std::byte*>(at) + whole;
    EXPECT_EQ(mprotect(end, page, PROT_NONE), 0);
    for (auto* p = end - n; p < end; ++p) *p = static_cast<std::byte>(first + rng() % count);
    return end - n;
  }
  std::vector<std::pair<void*, std::size_t>> mappings_;
};

struct Rows {
  std::int64_t rows, cols;
  std::vector<float> data;
  Rows(std::int64_t r, std::int64_t c) : rows(r), cols(c), data(static_cast<std::size_t>(r * c)) {}
  RowsView view(std::int64_t first, std::int64_t n) const {
    return {reinterpret_cast<const std::byte*>(data.data() + first * cols), DType::f32, n, cols,
            cols};
  }
  MutableRowsView out(std::int64_t first, std::int64_t n) {
    return {reinterpret_cast<std::byte*>(data.data() + first * cols), DType::f32, n, cols, cols};
  }
};

void multiply(MatmulPrecision precision, const Product& p) {
  Arena arena;
  cpu_matmul({}, arena, precision, {&p, 1});
}

// Rows one by one and together have equal bits, and the oracle's numbers within a bound: sums of up
// to 1024 products have at most 1024 roundings, then block sums are added; x rounded to bf16 has a
// relative error of 2^-9.
void check(MatmulPrecision precision, std::int64_t m, std::int64_t n, std::int64_t k) {
  std::mt19937 rng(test_seed(static_cast<std::uint32_t>(m * 7 + n * 3 + k)));
  const GuardedWeight w(rng, n, k);
  std::normal_distribution<float> normal;
  Rows x(m, k), alone(m, n), together(m, n), want(m, n);
  for (float& v : x.data) v = normal(rng);
  for (std::int64_t t = 0; t < m; ++t) multiply(precision, {x.view(t, 1), w.view, alone.out(t, 1)});
  multiply(precision, {x.view(0, m), w.view, together.out(0, m)});
  ASSERT_EQ(alone.data, together.data) << "m " << m << " n " << n << " k " << k;
  const Product p{x.view(0, m), w.view, want.out(0, m)};
  ref_matmul({&p, 1});
  const double roundings = static_cast<double>(std::min<std::int64_t>(k, 1024) + k / 1024 + 4);
  const double unit = roundings * 0x1p-24 + (precision == MatmulPrecision::bf16 ? 0x1p-9 : 0);
  for (std::int64_t t = 0; t < m; ++t) {
    for (std::int64_t i = 0; i < n; ++i) {
      const auto at = static_cast<std::size_t>(t * n + i);
      double size = 0;
      for (std::int64_t j = 0; j < k; ++j) {
        size +=
            std::abs(double{x.data[static_cast<std::size_t>(t * k + j)]} * weight_at(w.view, i, j));
      }
      ASSERT_LE(std::abs(double{together.data[at]} - want.data[at]), unit / (1 - unit) * size)
          << "m " << m << " n " << n << " k " << k << " row " << t << " out " << i;
    }
  }
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
        Rows x(m, kCols), out(m, 32);
        for (std::int64_t t = 0; t < m; ++t) {
          x.data[static_cast<std::size_t>(t * kCols + (first + t) % kCols)] = 1;
        }
        multiply(precision, {x.view(0, m), w, out.out(0, m)});
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
