// Operators of the emulated CUDA backend that wait for a norm of their result: the norm has the
// bits of a launch of its own, and what comes in between sees the result.
#include <gtest/gtest.h>

#include <algorithm>
#include <random>

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

class GpuHeldOperators : public ::testing::Test {
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
void GpuHeldOperators::check_experts(std::int64_t n) {
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

TEST_F(GpuHeldOperators, Experts) { check_experts(544); }

TEST_F(GpuHeldOperators, Codes) {
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

TEST_F(GpuHeldOperators, MixedStreams) {
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

}  // namespace
}  // namespace lathe
