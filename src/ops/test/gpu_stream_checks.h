// Operators on streams that follow each other in the CUDA backend, on a GPU or emulated: they share
// launches, with the bits of their own.
#pragma once

#include <gtest/gtest.h>

#include <cmath>
#include <random>

#include "base/test_scale.h"
#include "ops/cache_write.h"
#include "ops/elementwise.h"
#include "ops/hyper.h"
#include "ops/matmul.h"
#include "ops/test/gpu_test_util.h"

namespace lathe {
namespace ops_test {
// Of kernels; -1 on a GPU, which does not count them. The including file defines it.
std::int64_t launches_so_far();
}  // namespace ops_test

namespace {

// One part's result is added to the streams, which the next part reads: the sum, the product of it,
// the mix and its norm.
class GpuStreamParts : public ::testing::Test {
 protected:
  struct Shape {
    std::int64_t rows, n, columns;  // columns: of the product, 24 or 8
  };
  struct Part {
    MutableRowsView y, added_mix, x, product, out, mix, h;
  };
  static ops_test::Rows aligned(std::int64_t rows, std::int64_t cols, std::int64_t gap) {
    return {rows, cols, 0, gap + (4 - cols % 4) % 4};
  }
  ops_test::Rows random(std::int64_t rows, std::int64_t cols) {
    ops_test::Rows out = aligned(rows, cols, 4 * static_cast<std::int64_t>(rng() % 3));
    out.randomize(rng);
    return out;
  }
  // between(rows) is called with each operator's result.
  template <class Between>
  static void run(const OpsContext& ops, const Part& p, const WeightView& fn, const HyperMix& mix,
                  std::span<const float> norm, const Between& between) {
    hyper_add(ops, {constant(p.y), constant(p.added_mix), 4, p.x});
    between(p.x);
    matmul(ops, {constant(p.x), fn, p.product});
    between(p.product);
    HyperMix op = mix;
    op.x = constant(p.x);
    op.product = constant(p.product);
    op.out = p.out;
    op.mix = p.mix;
    hyper_mix(ops, op);
    between(p.out);
    rms_norm(ops, constant(p.out), norm, 1e-6f, p.h);
  }
  std::vector<float> random_vector(std::int64_t n) {
    const ops_test::Rows row = random(1, n);
    return {row.row(0), row.row(0) + n};
  }
  // launches: of operators that follow each other.
  void check(const Shape& shape, bool special, std::int64_t launches);

  std::uint32_t seed = test_seed(20261130);
  std::mt19937 rng{seed};
  ops_test::GpuContext gpu;
  ops_test::Context ref{1, Device::ref};
};

void GpuStreamParts::check(const Shape& shape, bool special, std::int64_t launches) {
  const auto [rows, n, columns] = shape;
  ops_test::Rows y = random(rows, n), added = random(rows, columns - 4), x = random(rows, 4 * n);
  if (special) {
    y.row(rows - 1)[n / 2] = INFINITY;
    x.row(0)[n + 1] = NAN;
    x.row(rows / 2)[3 * n] = -INFINITY;
  }
  ops_test::Rows product = aligned(rows, columns, 4), out = aligned(rows, n, 8);
  ops_test::Rows mix = aligned(rows, columns - 4, 0), h = aligned(rows, n, 0);
  const ops_test::Weight fn(rng, DType::f32, columns, 4 * n);
  const std::vector<float> norm = random_vector(n), base = random_vector(columns);
  const std::vector<float> scale = random_vector(columns == 24 ? 3 : 2);
  HyperMix op;
  op.base = base;
  op.scale = scale;
  op.streams = 4;
  op.iterations = columns == 24 ? 3 : 0;
  op.eps = op.norm_eps = 1e-6f;
  const auto none = [](const MutableRowsView&) {};
  const auto of_gpu = [&] {
    return Part{gpu.rows(y),   gpu.rows(added), gpu.rows(x), gpu.rows(product),
                gpu.rows(out), gpu.rows(mix),   gpu.rows(h)};
  };
  const Part joined = of_gpu(), apart = of_gpu();
  HyperMix there = op;
  there.base = gpu.list(base);
  there.scale = gpu.list(scale);
  const WeightView weight = gpu.weight(fn);
  const std::span<const float> norm_there = gpu.list(norm);
  EXPECT_TRUE(gpu.backend->wait().ok());
  const std::int64_t before = ops_test::launches_so_far();
  run(gpu.ops, joined, weight, there, norm_there, none);
  EXPECT_TRUE(gpu.backend->wait().ok());
  if (before >= 0) {
    EXPECT_EQ(ops_test::launches_so_far() - before, launches);
  }
  run(gpu.ops, apart, weight, there, norm_there, [&](const MutableRowsView& made) {
    ops_test::Rows copy = aligned(made.rows, made.cols, 0);
    cast_rows(gpu.ops, constant(made), gpu.rows(copy));
  });
  const auto expect_same = [&](const char* what, const MutableRowsView& a,
                               const MutableRowsView& b) {
    EXPECT_TRUE(gpu.read(a).same_bits(gpu.read(b))) << what;
  };
  expect_same("x", joined.x, apart.x);
  expect_same("product", joined.product, apart.product);
  expect_same("out", joined.out, apart.out);
  expect_same("mix", joined.mix, apart.mix);
  // A launch of its own norms up to 256 columns in another order.
  if (n > 256) expect_same("h", joined.h, apart.h);
  if (special) return;
  run(ref.ops, {y.out(), added.out(), x.out(), product.out(), out.out(), mix.out(), h.out()},
      fn.view, op, norm, none);
  EXPECT_LT(ops_test::error_of(gpu.read(joined.x), x), 1e-6);
  EXPECT_LT(ops_test::error_of(gpu.read(joined.product), product), 1e-6);
  EXPECT_LT(ops_test::error_of(gpu.read(joined.mix), mix), 1e-4);
  EXPECT_LT(ops_test::error_of(gpu.read(joined.h), h), 1e-4);
}

TEST_F(GpuStreamParts, TwoLaunchesHaveTheBitsOfFive) {
  std::printf("seed %u\n", seed);
  for (const std::int64_t n : {128, 384, 1024, 4096}) {
    for (const std::int64_t columns : {24, 8}) {
      for (const bool special : {false, true}) {
        const std::int64_t rows = n > 1024 ? 1 : 1 + static_cast<std::int64_t>(rng() % 16);
        SCOPED_TRACE(testing::Message() << rows << " rows of " << n << ", " << columns);
        check({rows, n, columns}, special, 2);
      }
    }
  }
  for (const std::int64_t rows : {3, 4, 5, 8, 9, 16}) check({rows, 128, 24}, false, 2);
}

// Streams that end within a slice, and many rows: the sum of streams has a launch of its own.
TEST_F(GpuStreamParts, OtherShapesTakeOneMore) {
  for (const auto& [rows, n] : {std::pair{3, 516}, {2, 64}, {17, 128}, {70, 256}}) {
    SCOPED_TRACE(testing::Message() << rows << " rows of " << n);
    check({rows, n, 24}, false, 3);
  }
}

}  // namespace
}  // namespace lathe
