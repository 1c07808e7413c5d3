// Shared experts in the launches of the routed ones, on the emulated CUDA backend: rows have the
// bits of the separate operators.
#include <gtest/gtest.h>

#include <algorithm>
#include <random>

#include "ops/elementwise.h"
#include "ops/matmul.h"
#include "ops/moe.h"
#include "ops/test/gpu_test_util.h"

namespace lathe {
namespace {

using ops_test::GpuContext;
using ops_test::Rows;
using ops_test::Weight;

struct Case {
  DType dtype = DType::bf16;
  MatmulPrecision precision = MatmulPrecision::bf16;
  std::int64_t rows = 1, width = 0;
  bool factor = false;
};

class GpuSharedExperts : public ::testing::Test {
 protected:
  static constexpr std::int64_t kColumns = 1152, kFfn = 128;
  static constexpr std::int32_t kExperts = 8;
  std::mt19937 rng{7};
  GpuContext gpu;
  std::vector<Weight> weights;

  WeightView weight(DType dtype, std::int64_t rows, std::int64_t cols) {
    weights.emplace_back(rng, dtype, rows, cols, dtype == DType::e4m3);
    return gpu.weight(weights.back());
  }
  WeightStack stack(DType dtype, std::int64_t rows, std::int64_t cols) {
    WeightStack s = WeightStack::of(kExperts, dtype, rows, cols);
    for (std::int64_t e = 0; e < kExperts; ++e) {
      weights.emplace_back(rng, dtype, rows, cols, dtype == DType::e4m3);
      s.set(e, weights.back().view);
    }
    return std::move(gpu.backend->prepare(s, gpu.owned)).value();
  }
  // The shared experts as separate operators, as a model calls them.
  void add_shared(const RowsView& x, const SharedExperts& s, const MutableRowsView& out, bool add) {
    const Arena::Scope scope(gpu.tensors);
    const MutableRowsView hidden = alloc_rows(gpu.tensors, x.rows, s.gate.rows, DType::bf16);
    gated_matmul(gpu.ops, {x, s.gate, s.up, s.activation, hidden});
    if (s.factor.rows > 0) {
      const MutableRowsView factor = alloc_rows(gpu.tensors, x.rows, 1);
      matmul(gpu.ops, {x, s.factor, factor});
      gate_rows(gpu.ops, {.x = hidden, .gate = constant(factor)});
    }
    matmul(gpu.ops, {constant(hidden), s.down, out, nullptr, add});
  }

  void check(const Case& c) {
    SCOPED_TRACE(::testing::Message() << name(c.dtype) << ", " << name(c.precision) << ", "
                                      << c.rows << " rows, width " << c.width);
    weights.clear();
    weights.reserve(3 * kExperts + 5);
    gpu.ops.precision = c.precision;
    ExpertStacks stacks;
    stacks.gate = stack(c.dtype, kFfn, kColumns);
    stacks.up = stack(c.dtype, kFfn, kColumns);
    stacks.down = stack(c.dtype, kColumns, kFfn);
    SharedExperts shared{.gate = weight(c.dtype, c.width, kColumns),
                         .up = weight(c.dtype, c.width, kColumns),
                         .down = weight(c.dtype, kColumns, c.width),
                         .activation = {}};
    if (c.factor) shared.factor = weight(DType::bf16, 1, kColumns);
    const auto rows = [&] {
      Rows out(c.rows, kColumns, 0, 0);
      out.randomize(rng);
      return out;
    };
    ExpertLayer op;
    op.x = constant(gpu.bf16_rows(rows()));
    op.router = weight(DType::bf16, kExperts, kColumns);
    op.choice.experts = kExperts;
    op.choice.top_k = 3;
    op.experts = &stacks;
    Rows before = rows();
    for (const bool add : {false, true}) {
      const MutableRowsView joined = gpu.rows(before), apart = gpu.rows(before);
      op.add = add;
      op.out = joined;
      ASSERT_TRUE(expert_layer_with_shared(gpu.ops, op, shared));
      op.out = apart;
      op.add = true;
      if (!add) add_shared(op.x, shared, apart, false);
      expert_layer(gpu.ops, op);
      if (add) add_shared(op.x, shared, apart, true);
      const Rows a = gpu.read(joined), b = gpu.read(apart);
      EXPECT_TRUE(a.data == b.data) << (add ? "added" : "alone");
    }
  }
};

TEST_F(GpuSharedExperts, Bf16) {
  for (const std::int64_t rows : {1, 5, 40}) check({.rows = rows, .width = 256});
  check({.rows = 3, .width = 1536});  // parts of K
}
TEST_F(GpuSharedExperts, WithAFactor) {
  for (const std::int64_t rows : {1, 11}) check({.rows = rows, .width = 128, .factor = true});
}
TEST_F(GpuSharedExperts, Codes) {
  // The emulator's mma.sync adds in another order than its wgmma, so more rows than a kernel of few
  // tokens has (sm90/matmul/few/few_codes.cuh).
  check({.dtype = DType::e4m3, .rows = 9, .width = 128});
  for (const std::int64_t rows : {1, 7}) {
    check({.dtype = DType::e4m3, .precision = MatmulPrecision::fp8, .rows = rows, .width = 256});
  }
}

// Too many rows, and weights of another format.
TEST_F(GpuSharedExperts, LeavesOthersAlone) {
  weights.reserve(3 * kExperts + 5);
  ExpertStacks stacks;
  stacks.gate = stacks.up = stack(DType::bf16, kFfn, kColumns);
  stacks.down = stack(DType::bf16, kColumns, kFfn);
  ExpertLayer op;
  op.router = weight(DType::bf16, kExperts, kColumns);
  op.choice.experts = kExperts;
  op.choice.top_k = 3;
  op.experts = &stacks;
  for (const auto& [rows, dtype] :
       {std::pair<std::int64_t, DType>{65, DType::bf16}, {2, DType::e4m3}}) {
    const SharedExperts shared{.gate = weight(dtype, kFfn, kColumns),
                               .up = weight(dtype, kFfn, kColumns),
                               .down = weight(dtype, kColumns, kFfn),
                               .activation = {}};
    Rows x(rows, kColumns, 0, 0), out(rows, kColumns, 0, 0);
    op.x = constant(gpu.bf16_rows(x));
    op.out = gpu.rows(out);
    EXPECT_FALSE(expert_layer_with_shared(gpu.ops, op, shared));
    weights.clear();
  }
}

}  // namespace
}  // namespace lathe
