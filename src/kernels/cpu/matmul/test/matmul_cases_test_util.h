// Weights at the end of readable memory, and a comparison of the CPU's GEMM with the oracle's.
#pragma once

#include <gtest/gtest.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <random>
#include <utility>
#include <vector>

#include "kernels/cpu/matmul/matmul.h"
#include "kernels/ref/linear.h"

namespace lathe {

/// Arrays that end at the end of readable memory.
class GuardedMemory {
 public:
  GuardedMemory() = default;
  GuardedMemory(const GuardedMemory&) = delete;
  ~GuardedMemory() {
    for (const auto& [at, size] : mappings_) munmap(at, size);
  }
  std::byte* take(std::int64_t n) {
    const auto page = static_cast<std::size_t>(sysconf(_SC_PAGESIZE));
    const std::size_t whole = (static_cast<std::size_t>(n) + page - 1) / page * page;
    void* at =
        mmap(nullptr, whole + page, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    EXPECT_NE(at, MAP_FAILED);
    mappings_.emplace_back(at, whole + page);
    auto* end = static_cast<std::byte*>(at) + whole;
    EXPECT_EQ(mprotect(end, page, PROT_NONE), 0);
    return end - n;
  }
  /// Random bytes of first to first + count - 1.
  std::byte* random_bytes(std::mt19937& rng, std::int64_t n, unsigned first, unsigned count) {
    std::byte* out = take(n);
    for (std::int64_t i = 0; i < n; ++i) out[i] = static_cast<std::byte>(first + rng() % count);
    return out;
  }

 private:
  std::vector<std::pair<void*, std::size_t>> mappings_;
};

struct MatmulRows {
  std::int64_t rows, cols;
  std::vector<float> data;
  MatmulRows(std::int64_t r, std::int64_t c)
      : rows(r), cols(c), data(static_cast<std::size_t>(r * c)) {}
  RowsView view(std::int64_t first, std::int64_t n) const {
    return {reinterpret_cast<const std::byte*>(data.data() + first * cols), DType::f32, n, cols,
            cols};
  }
  MutableRowsView out(std::int64_t first, std::int64_t n) {
    return {reinterpret_cast<std::byte*>(data.data() + first * cols), DType::f32, n, cols, cols};
  }
};

inline void cpu_multiply(MatmulPrecision precision, const Product& p) {
  Arena arena;
  cpu_matmul({}, arena, precision, {&p, 1});
}

/// Rows one by one and together have equal bits, and the oracle's numbers within a bound: sums of
/// up to 1024 products have at most 1024 roundings, then block sums are added; `rounding` is the
/// relative error of an element of x and of a weight together.
inline void check_product(std::mt19937& rng, MatmulPrecision precision, std::int64_t m,
                          const WeightView& w, double rounding) {
  const std::int64_t n = w.rows, k = w.cols;
  std::normal_distribution<float> normal;
  MatmulRows x(m, k), alone(m, n), together(m, n), want(m, n);
  for (float& v : x.data) v = normal(rng);
  for (std::int64_t t = 0; t < m; ++t) {
    cpu_multiply(precision, {x.view(t, 1), w, alone.out(t, 1)});
  }
  cpu_multiply(precision, {x.view(0, m), w, together.out(0, m)});
  ASSERT_EQ(alone.data, together.data) << "m " << m << " n " << n << " k " << k;
  const Product p{x.view(0, m), w, want.out(0, m)};
  ref_matmul({&p, 1});
  const double roundings = static_cast<double>(std::min<std::int64_t>(k, 1024) + k / 1024 + 4);
  const double unit = roundings * 0x1p-24 + rounding;
  for (std::int64_t t = 0; t < m; ++t) {
    for (std::int64_t i = 0; i < n; ++i) {
      const auto at = static_cast<std::size_t>(t * n + i);
      double size = 0;
      for (std::int64_t j = 0; j < k; ++j) {
        const std::int64_t column = w.columns == nullptr ? j : w.columns[j];
        size +=
            std::abs(double{x.data[static_cast<std::size_t>(t * k + column)]} * weight_at(w, i, j));
      }
      ASSERT_LE(std::abs(double{together.data[at]} - want.data[at]), unit / (1 - unit) * size)
          << "m " << m << " n " << n << " k " << k << " row " << t << " out " << i;
    }
  }
}

}  // namespace lathe
