// The CUDA backend's hyper-connections, on a GPU or emulated, and the narrow GEMMs before them,
// against the double-precision oracle.
#pragma once

#include <gtest/gtest.h>

#include <cmath>
#include <random>

#include "base/test_scale.h"
#include "ops/hyper.h"
#include "ops/matmul.h"
#include "ops/test/gpu_test_util.h"

namespace lathe {
namespace {

using ops_test::error_of;
using ops_test::GpuContext;
using ops_test::Rows;

// Rows aligned to 16 bytes, as in an arena.
Rows aligned(std::int64_t rows, std::int64_t cols) {
  return {rows, cols, __builtin_nanf(""), 4 - cols % 4};
}
template <class Rng>
Rows random_rows(Rng& rng, std::int64_t rows, std::int64_t cols) {
  Rows out = aligned(rows, cols);
  out.randomize(rng);
  return out;
}
template <class Rng>
std::vector<float> random_vector(Rng& rng, std::int64_t n) {
  std::normal_distribution<float> normal;
  std::vector<float> out(static_cast<std::size_t>(n));
  for (float& v : out) v = normal(rng);
  return out;
}

class GpuHyper : public ::testing::Test {
 protected:
  GpuHyper() : seed(test_seed(20261126)), rng(seed) { std::printf("seed %u\n", seed); }

  std::uint32_t seed;
  std::mt19937 rng;
  GpuContext gpu;
  ops_test::Context ref{1, Device::ref};
};

TEST_F(GpuHyper, Mix) {
  for (const std::int32_t iterations : {0, 1, 2, 20}) {
    for (const std::int64_t n : {4, 64, 2052}) {
      for (const float spread : {1.0f, 60.0f}) {
        const std::int64_t columns = iterations > 0 ? 24 : 8;
        Rows x = random_rows(rng, 5, 4 * n), product = random_rows(rng, 5, columns);
        for (float& v : product.data) v *= spread;
        const std::vector<float> base = random_vector(rng, columns);
        std::vector<float> scale = {1.1f, 0.8f, 0.9f};
        if (iterations == 0) scale.pop_back();
        Rows out = aligned(5, n), mix = aligned(5, columns - 4);
        const HyperMix op{.x = x.view(),
                          .product = product.view(),
                          .base = base,
                          .scale = scale,
                          .streams = 4,
                          .iterations = iterations,
                          .eps = 1e-6f,
                          .post_scale = 1.7f,
                          .post_eps = 0.1f,
                          .norm_eps = 1e-6f,
                          .out = out.out(),
                          .mix = mix.out()};
        HyperMix there = op;
        there.x = constant(gpu.rows(x));
        there.product = constant(gpu.rows(product));
        there.base = gpu.list(base);
        there.scale = gpu.list(scale);
        there.out = gpu.rows(out);
        there.mix = gpu.rows(mix);
        hyper_mix(gpu.ops, there);
        hyper_mix(ref.ops, op);
        EXPECT_LT(error_of(gpu.read(there.out), out), 2e-6 * (1 + spread)) << n;
        EXPECT_LT(error_of(gpu.read(there.mix), mix), 2e-6 * (1 + spread)) << n;
      }
    }
  }
}

TEST_F(GpuHyper, Add) {
  for (const std::int64_t n : {4, 300, 1028}) {
    for (const std::int64_t columns : {20, 4}) {
      Rows x = random_rows(rng, 6, 4 * n), y = random_rows(rng, 6, n);
      Rows mix = random_rows(rng, 6, columns);
      const MutableRowsView there = gpu.rows(x);
      hyper_add(gpu.ops, {constant(gpu.rows(y)), constant(gpu.rows(mix)), 4, there});
      hyper_add(ref.ops, {y.view(), mix.view(), 4, x.out()});
      EXPECT_LT(error_of(gpu.read(there), x), 1e-6) << n << " " << columns;
    }
  }
}

TEST_F(GpuHyper, HeadOfTheMean) {
  Rows x = random_rows(rng, 6, 4 * 64), out = aligned(6, 64);
  const MutableRowsView there = gpu.rows(out);
  hyper_head(gpu.ops, {.x = constant(gpu.rows(x)), .streams = 4, .out = there});
  hyper_head(ref.ops, {.x = x.view(), .streams = 4, .out = out.out()});
  EXPECT_LT(error_of(gpu.read(there), out), 1e-6);
}

TEST_F(GpuHyper, Head) {
  Rows x = random_rows(rng, 6, 4 * 256), product = random_rows(rng, 6, 4), out = aligned(6, 256);
  const std::vector<float> base = {0.3f, -1, 0.5f, 2}, scale = {1.2f};
  const HyperHead op{.x = x.view(),
                     .product = product.view(),
                     .base = base,
                     .scale = scale,
                     .streams = 4,
                     .eps = 1e-6f,
                     .norm_eps = 1e-6f,
                     .out = out.out()};
  HyperHead there = op;
  there.x = constant(gpu.rows(x));
  there.product = constant(gpu.rows(product));
  there.base = gpu.list(base);
  there.scale = gpu.list(scale);
  there.out = gpu.rows(out);
  hyper_head(gpu.ops, there);
  hyper_head(ref.ops, op);
  EXPECT_LT(error_of(gpu.read(there.out), out), 1e-6);
}

// The first row's bits do not depend on the other rows.
TEST_F(GpuHyper, NarrowProducts) {
  for (const auto& [rows, cols, outputs] :
       {std::tuple{1, 4, 4}, {2, 384, 8}, {3, 512, 24}, {17, 516, 24}, {33, 2300, 32}}) {
    const ops_test::Weight w(rng, DType::f32, outputs, cols);
    Rows x = random_rows(rng, rows, cols), out = aligned(rows, outputs), one = aligned(1, outputs);
    const WeightView there = gpu.weight(w);
    const RowsView from = constant(gpu.rows(x));
    const MutableRowsView to = gpu.rows(out), first = gpu.rows(one);
    matmul(gpu.ops, {from, there, to});
    matmul(gpu.ops, {rows_at(from, 0, 1), there, first});
    matmul(ref.ops, {x.view(), w.view, out.out()});
    const Rows got = gpu.read(to);
    EXPECT_LT(error_of(got, out), 1e-6) << rows << " x " << cols;
    EXPECT_TRUE(got.copy(0, 1).same_bits(gpu.read(first).copy(0, 1)));
  }
}

}  // namespace
}  // namespace lathe
