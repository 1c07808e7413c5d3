// Operators of the emulated CUDA backend that wait for a norm of their result: the norm has the
// bits of a launch of its own, and what comes in between sees the result.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <random>

#include "base/test_scale.h"
#include "kernels/cuda/fake/fake_cuda.h"
#include "ops/cache_write.h"
#include "ops/elementwise.h"
#include "ops/hyper.h"
#include "ops/matmul.h"
#include "ops/moe.h"
#include "ops/test/gpu_test_util.h"

namespace lathe {
namespace {

using ops_test::GpuContext;
using ops_test::Rows;
using ops_test::Weight;

class GpuBeforeNorm : public ::testing::Test {
 protected:
  static constexpr std::int64_t kRows = 3;
  static constexpr float kEps = 1e-6f;
  std::mt19937 rng{31};
  GpuContext gpu;

  std::span<const float> vector_of(std::int64_t n) {
    std::normal_distribution<float> normal;
    std::vector<float> out(static_cast<std::size_t>(n));
    for (float& v : out) v = normal(rng);
    return gpu.list(out);
  }
  // Rows of whole words, as in an arena.
  static Rows aligned(std::int64_t cols) { return {kRows, cols, 0, 8 - cols % 8}; }
  MutableRowsView random(std::int64_t cols) {
    Rows out = aligned(cols);
    out.randomize(rng);
    return gpu.rows(out);
  }
  MutableRowsView empty_bf16(std::int64_t cols) { return gpu.bf16_rows(aligned(cols)); }
  void check_experts(std::int64_t n);
  static void expect_equal(const Rows& a, const Rows& b) {
    for (std::int64_t r = 0; r < a.rows; ++r) {
      EXPECT_TRUE(std::equal(a.row(r), a.row(r) + a.cols, b.row(r))) << "row " << r;
    }
  }
  // The product of rows and e4m3 weights, whose launch may find codes of the rows; none for columns
  // of part of a block.
  std::vector<MutableRowsView> product_of(const MutableRowsView& h, const WeightView& w) {
    if (h.cols % 16 != 0) return {};
    const MutableRowsView out = random(w.rows);
    matmul(gpu.ops, {constant(h), w, out});
    return {out};
  }
  // compute(out) twice: with the norm right after it, and with a copy of the result in between;
  // then products of both norms' results, also with a copy in between.
  template <class Compute>
  void check(std::int64_t cols, const Compute& compute) {
    const std::span<const float> weight = vector_of(cols);
    const Weight host(rng, DType::e4m3, 32, cols, true);
    const WeightView codes = gpu.weight(host);
    const MutableRowsView joined = empty_bf16(cols), apart = empty_bf16(cols);
    const MutableRowsView first = random(cols), second = random(cols), copy = random(cols);
    cast_rows(gpu.ops, constant(first), second);
    compute(first);
    rms_norm(gpu.ops, constant(first), weight, kEps, joined);
    const auto coded = product_of(joined, codes);
    compute(second);
    cast_rows(gpu.ops, constant(second), copy);
    rms_norm(gpu.ops, constant(copy), weight, kEps, apart);
    cast_rows(gpu.ops, constant(copy), random(cols));
    const auto plain = product_of(apart, codes);
    for (std::size_t i = 0; i < coded.size(); ++i) {
      expect_equal(gpu.read(coded[i]), gpu.read(plain[i]));
    }
    expect_equal(gpu.read(first), gpu.read(copy));
    expect_equal(gpu.read(joined), gpu.read(apart));
  }
};

// n: with whole blocks of 128 the norm's launch makes codes for e4m3 weights.
void GpuBeforeNorm::check_experts(std::int64_t n) {
  constexpr std::int64_t ffn = 64, experts = 8;
  std::vector<Weight> weights;
  weights.reserve(3 * experts);
  ExpertStacks stacks;
  const auto stack = [&](std::int64_t rows, std::int64_t cols) {
    WeightStack s = WeightStack::of(experts, DType::bf16, rows, cols);
    for (std::int64_t e = 0; e < experts; ++e) {
      weights.emplace_back(rng, DType::bf16, rows, cols, false);
      s.set(e, weights.back().view);
    }
    return std::move(gpu.backend->prepare(s, gpu.owned)).value();
  };
  stacks.gate = stack(ffn, n);
  stacks.up = stack(ffn, n);
  stacks.down = stack(n, ffn);
  const Weight router(rng, DType::bf16, experts, n);
  Rows x = aligned(n);
  x.randomize(rng);
  ExpertLayer op;
  op.x = constant(gpu.bf16_rows(x));
  op.router = gpu.weight(router);
  op.choice.experts = experts;
  op.choice.top_k = 3;
  op.experts = &stacks;
  for (const bool add : {false, true}) {
    op.add = add;
    check(n, [&](const MutableRowsView& out) {
      op.out = out;
      expert_layer(gpu.ops, op);
    });
  }
}

TEST_F(GpuBeforeNorm, Experts) { check_experts(544); }

TEST_F(GpuBeforeNorm, Codes) {
  ASSERT_TRUE(gpu.backend->reserve({}).ok());
  for (const MatmulPrecision precision : {MatmulPrecision::fp8, MatmulPrecision::fp8_pow2}) {
    gpu.ops.precision = precision;
    check_experts(544);
    check_experts(640);
    for (const std::int64_t cols : {384, 7168, 8192}) {  // a norm of a copy
      const MutableRowsView x = random(cols);
      check(cols, [&](const MutableRowsView& out) { cast_rows(gpu.ops, constant(x), out); });
    }
  }
}

TEST_F(GpuBeforeNorm, MixedStreams) {
  for (const std::int64_t n : {4, 516, 8192, 8196}) {  // the last one is too wide to be joined
    const RowsView x = constant(random(4 * n)), product = constant(random(24));
    const std::span<const float> base = vector_of(24), scale = vector_of(3);
    const MutableRowsView mix = random(20);
    check(n, [&](const MutableRowsView& out) {
      hyper_mix(gpu.ops, {.x = x,
                          .product = product,
                          .base = base,
                          .scale = scale,
                          .streams = 4,
                          .iterations = 2,
                          .eps = kEps,
                          .norm_eps = kEps,
                          .out = out,
                          .mix = mix});
    });
  }
}

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
  static Rows aligned(std::int64_t rows, std::int64_t cols, std::int64_t gap) {
    return {rows, cols, 0, gap + (4 - cols % 4) % 4};
  }
  Rows random(std::int64_t rows, std::int64_t cols) {
    Rows out = aligned(rows, cols, 4 * static_cast<std::int64_t>(rng() % 3));
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
    const Rows row = random(1, n);
    return {row.row(0), row.row(0) + n};
  }
  std::int64_t check(const Shape& shape, bool special);

  std::uint32_t seed = test_seed(20261130);
  std::mt19937 rng{seed};
  GpuContext gpu;
  ops_test::Context ref{1, Device::ref};
};

/// Returns the launches of operators that follow each other.
std::int64_t GpuStreamParts::check(const Shape& shape, bool special) {
  const auto [rows, n, columns] = shape;
  Rows y = random(rows, n), added = random(rows, columns - 4), x = random(rows, 4 * n);
  if (special) {
    y.row(rows - 1)[n / 2] = INFINITY;
    x.row(0)[n + 1] = NAN;
    x.row(rows / 2)[3 * n] = -INFINITY;
  }
  Rows product = aligned(rows, columns, 4), out = aligned(rows, n, 8);
  Rows mix = aligned(rows, columns - 4, 0), h = aligned(rows, n, 0);
  const Weight fn(rng, DType::f32, columns, 4 * n);
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
  const std::int64_t before = cuda::fake::counts().launches;
  run(gpu.ops, joined, weight, there, norm_there, none);
  EXPECT_TRUE(gpu.backend->wait().ok());
  const std::int64_t launches = cuda::fake::counts().launches - before;
  run(gpu.ops, apart, weight, there, norm_there, [&](const MutableRowsView& made) {
    Rows copy = aligned(made.rows, made.cols, 0);
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
  if (special) return launches;
  run(ref.ops, {y.out(), added.out(), x.out(), product.out(), out.out(), mix.out(), h.out()},
      fn.view, op, norm, none);
  EXPECT_LT(ops_test::error_of(gpu.read(joined.x), x), 1e-6);
  EXPECT_LT(ops_test::error_of(gpu.read(joined.product), product), 1e-6);
  EXPECT_LT(ops_test::error_of(gpu.read(joined.mix), mix), 1e-5);
  EXPECT_LT(ops_test::error_of(gpu.read(joined.h), h), 1e-5);
  return launches;
}

TEST_F(GpuStreamParts, TwoLaunchesHaveTheBitsOfFive) {
  std::printf("seed %u\n", seed);
  for (const std::int64_t n : {128, 384, 1024, 4096}) {
    for (const std::int64_t columns : {24, 8}) {
      for (const bool special : {false, true}) {
        const std::int64_t rows = n > 1024 ? 1 : 1 + static_cast<std::int64_t>(rng() % 16);
        SCOPED_TRACE(testing::Message() << rows << " rows of " << n << ", " << columns);
        EXPECT_EQ(check({rows, n, columns}, special), 2);
      }
    }
  }
  for (const std::int64_t rows : {3, 4, 5, 8, 9, 16}) EXPECT_EQ(check({rows, 128, 24}, false), 2);
}

// Streams that end within a slice, and many rows: the sum of streams has a launch of its own.
TEST_F(GpuStreamParts, OtherShapesTakeOneMore) {
  for (const auto& [rows, n] : {std::pair{3, 516}, {2, 64}, {17, 128}, {70, 256}}) {
    SCOPED_TRACE(testing::Message() << rows << " rows of " << n);
    EXPECT_EQ(check({rows, n, 24}, false), 3);
  }
}

}  // namespace
}  // namespace lathe
