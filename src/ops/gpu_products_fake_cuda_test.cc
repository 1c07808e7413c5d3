// The products of the CUDA backend, its experts and its indexer, emulated, against the oracle.
#include <gtest/gtest.h>

#include <cmath>
#include <numeric>
#include <random>

#include "attn/budget.h"
#include "kernels/cuda/common/memory.h"
#include "ops/cache_write.h"
#include "ops/gpu_test_util.h"
#include "ops/indexer.h"
#include "ops/matmul.h"
#include "ops/moe.h"

namespace lathe {
namespace {

using ops_test::GpuContext;
using ops_test::Rows;
using ops_test::Weight;

constexpr DType kWeights[] = {DType::f32, DType::f16, DType::bf16, DType::e4m3, DType::e2m1};

double error_of(const Rows& got, const Rows& wanted) {
  double difference = 0, norm = 0;
  for (std::int64_t r = 0; r < wanted.rows; ++r) {
    for (std::int64_t c = 0; c < wanted.cols; ++c) {
      const double d = double{got.row(r)[c]} - wanted.row(r)[c];
      difference += d * d;
      norm += double{wanted.row(r)[c]} * wanted.row(r)[c];
    }
  }
  return std::sqrt(difference / norm);
}

class GpuProducts : public ::testing::Test {
 protected:
  // Rows that bf16 holds exactly, so that both sides multiply the same numbers.
  Rows bf16_values(std::int64_t rows, std::int64_t cols) {
    Rows x(rows, cols);
    x.randomize(rng);
    for (float& v : x.data) v = to_f32(to_bf16(v));
    return x;
  }
  std::mt19937 rng{3};
  GpuContext gpu;
  ops_test::Context ref{1, Device::ref};
};

TEST_F(GpuProducts, EveryWeightAndOddSizes) {
  for (const DType dtype : kWeights) {
    for (const auto& [m, n, k] : {std::tuple{1, 5, 33}, {19, 70, 200}, {33, 130, 129}}) {
      const std::int64_t cols = ops_test::whole_blocks(dtype, k);
      const Weight w(rng, dtype, n, cols, dtype == DType::e4m3);
      Rows x = bf16_values(m, cols), out(m, n);
      out.randomize(rng);
      std::vector<float> bias(static_cast<std::size_t>(n));
      for (float& v : bias) v = std::normal_distribution<float>()(rng);
      const MutableRowsView there = gpu.rows(out);
      const bool add = m == 19;
      matmul(gpu.ops,
             {constant(gpu.bf16_rows(x)), gpu.weight(w), there, gpu.list(bias).data(), add});
      matmul(ref.ops, {x.view(), w.view, out.out(), bias.data(), add});
      EXPECT_LT(error_of(gpu.read(there), out), 1e-5)
          << name(dtype) << " " << m << " x " << n << " x " << cols;
    }
  }
}

TEST_F(GpuProducts, ARowsBitsDoNotDependOnTheRowsBesideIt) {
  const Weight w(rng, DType::bf16, 40, 300);
  const WeightView weight = gpu.weight(w);
  Rows x(50, 300), all(50, 40), one(1, 40);
  x.randomize(rng);
  const RowsView from = constant(gpu.rows(x));
  const MutableRowsView out = gpu.rows(all), single = gpu.rows(one);
  matmul(gpu.ops, {from, weight, out});
  const Rows whole = gpu.read(out);
  for (const std::int64_t row : {0, 17, 49}) {
    matmul(gpu.ops, {rows_at(from, row, 1), weight, single});
    const Rows alone = gpu.read(single);
    for (std::int64_t c = 0; c < 40; ++c) ASSERT_EQ(alone.row(0)[c], whole.row(row)[c]);
  }
}

TEST_F(GpuProducts, Heads) {
  std::vector<Weight> weights;
  WeightStack stack = WeightStack::of(3, DType::e4m3, 128, 256);
  for (int h = 0; h < 3; ++h) {
    weights.emplace_back(rng, DType::e4m3, 128, 256, true);
    stack.set(h, weights.back().view);
  }
  Rows x = bf16_values(5, 3 * 300), out(5, 3 * 140);
  const MutableRowsView there = gpu.rows(out);
  const WeightStack prepared = gpu.backend->prepare(stack, gpu.owned).value();
  head_matmul(gpu.ops, {constant(gpu.bf16_rows(x)), 300, &prepared, there, 140});
  head_matmul(ref.ops, {x.view(), 300, &stack, out.out(), 140});
  const Rows got = gpu.read(there);
  for (int h = 0; h < 3; ++h) {
    for (std::int64_t r = 0; r < 5; ++r) {
      for (std::int64_t c = 0; c < 128; ++c) {
        const float wanted = out.row(r)[h * 140 + c];
        ASSERT_NEAR(got.row(r)[h * 140 + c], wanted, 1e-4 * std::fabs(wanted) + 1e-4);
      }
    }
  }
}

struct Experts {
  std::vector<Weight> weights;
  ExpertStacks stacks;
  std::vector<float> gate_bias, down_bias;
};

TEST_F(GpuProducts, Experts) {
  struct Form {
    DType dtype;
    std::int32_t experts, top_k, groups, top_groups;
    RouterScoring scoring;
    bool turns;
  };
  const Form forms[] = {
      {DType::bf16, 8, 2, 1, 1, RouterScoring::softmax, false},
      {DType::e4m3, 16, 4, 4, 2, RouterScoring::sigmoid, false},
      {DType::e2m1, 6, 3, 1, 1, RouterScoring::softmax, true},
  };
  for (const Form& f : forms) {
    constexpr std::int64_t n = 96, ffn = 64, rows = 21;
    const auto stack = [&](std::int64_t out, std::int64_t in, std::vector<Weight>& weights) {
      WeightStack s = WeightStack::of(f.experts, f.dtype, out, in);
      for (std::int32_t e = 0; e < f.experts; ++e) {
        weights.emplace_back(rng, f.dtype, out, in, f.dtype == DType::e4m3);
        s.set(e, weights.back().view);
      }
      return s;
    };
    std::vector<Weight> weights;
    weights.reserve(static_cast<std::size_t>(3 * f.experts));
    ExpertStacks here;
    here.gate = stack(f.turns ? 2 * ffn : ffn, n, weights);
    if (!f.turns) here.up = stack(ffn, n, weights);
    here.down = stack(n, ffn, weights);
    std::vector<float> gate_bias(static_cast<std::size_t>(f.experts * 2 * ffn));
    std::vector<float> down_bias(static_cast<std::size_t>(f.experts * n));
    std::vector<float> bias(static_cast<std::size_t>(f.experts));
    for (auto* list : {&gate_bias, &down_bias, &bias}) {
      for (float& v : *list) v = 0.1f * std::normal_distribution<float>()(rng);
    }
    ExpertStacks there{gpu.backend->prepare(here.gate, gpu.owned).value(),
                       gpu.backend->prepare(here.up, gpu.owned).value(),
                       gpu.backend->prepare(here.down, gpu.owned).value(),
                       {},
                       {}};
    if (f.turns) {
      here.gate_bias = gate_bias;
      here.down_bias = down_bias;
      there.gate_bias = gpu.list(gate_bias);
      there.down_bias = gpu.list(down_bias);
    }
    const Weight router(rng, DType::bf16, f.experts, n);
    Rows x = bf16_values(rows, n), out(rows, n);
    out.randomize(rng);
    ExpertLayer op{.x = x.view(),
                   .router = router.view,
                   .router_bias = {},
                   .choice = {.scoring = f.scoring,
                              .experts = f.experts,
                              .top_k = f.top_k,
                              .groups = f.groups,
                              .top_groups = f.top_groups,
                              .bias = bias,
                              .scale = 1.5f},
                   .activation = {f.turns ? ActivationKind::clamped_swiglu : ActivationKind::silu},
                   .experts = &here,
                   .out = out.out()};
    ExpertLayer on_gpu = op;
    const MutableRowsView made = gpu.rows(out);
    on_gpu.x = constant(gpu.bf16_rows(x));
    on_gpu.router = gpu.weight(router);
    on_gpu.choice.bias = gpu.list(bias);
    on_gpu.experts = &there;
    on_gpu.out = made;
    expert_layer(gpu.ops, on_gpu);
    expert_layer(ref.ops, op);
    EXPECT_LT(error_of(gpu.read(made), out), 1e-5) << name(f.dtype);
  }
}

// Lengths below and above k, equal scores, holes in the page table.
TEST_F(GpuProducts, SelectsTheKeysThatTheCpuSelects) {
  constexpr std::int32_t heads = 4, dim = 128, page = 16;
  constexpr std::int64_t k = 24, pages = 40, rows = 7, width = 12;
  ops_test::Context cpu(1);
  const CacheLayout layout(LayoutKind::index_fp8, {.dim = dim});
  std::vector<std::byte> pool(static_cast<std::size_t>(pages * layout.page_stride(page)),
                              std::byte{0xff});
  Rows keys(pages * page, dim), q(rows, heads * dim), weights(rows, heads);
  keys.randomize(rng);
  q.randomize(rng);
  weights.randomize(rng);
  // Tokens of a page alike, so that their scores are.
  for (std::int64_t t = 3 * page + 1; t < 5 * page; ++t) {
    std::copy_n(keys.row(3 * page), dim, keys.row(t));
  }
  std::vector<Slot> slots;
  for (std::int32_t t = 0; t < pages * page; ++t) slots.emplace_back(t);
  ASSERT_TRUE(write_rows(cpu.ops, keys.view(), slots, {pool.data(), layout, page, pages}).ok());

  std::vector<PageId> table;
  for (std::int64_t i = 0; i < 3 * width; ++i) {
    table.emplace_back(static_cast<std::int32_t>((i * 7 + 3) % pages));
  }
  const std::vector<std::int32_t> request = {0, 0, 1, 1, 2, 2, 2};
  const std::vector<std::int32_t> lens = {1, 24, 25, 192, 0, 100, 77};
  StepView step;
  step.rows = rows;
  step.requests = 3;
  step.max_context = 192;
  step.selecting_rows = 4;
  step.row_request = request;
  step.index_lens = lens;
  step.page_table = {table.data(), 3, width};
  std::vector<std::int32_t> wanted(rows * k, 7), got(rows * k, 7);
  SelectKeys op{.step = &step,
                .keys = PoolView(pool.data(), layout, page, pages),
                .main = {page, pages},
                .heads = heads,
                .dim = dim,
                .q = q.view(),
                .weights = weights.view(),
                .k = k,
                .slots = wanted};
  const auto chosen_by_cpu = select_keys(cpu.ops, op);
  ASSERT_TRUE(chosen_by_cpu.ok()) << chosen_by_cpu.error().message();

  StepView there = step;
  there.row_request = gpu.list(request);
  there.index_lens = gpu.list(lens);
  there.page_table.data = gpu.list(table).data();
  SelectKeys on_gpu = op;
  on_gpu.step = &there;
  on_gpu.budget_bytes = 3 * 192 * 4;  // three rows at a time
  on_gpu.keys = PoolView(gpu.bring(pool.data(), pool.size()), layout, page, pages);
  on_gpu.q = constant(gpu.rows(q));
  on_gpu.weights = constant(gpu.rows(weights));
  const auto chosen = gpu.list(got);
  on_gpu.slots = {const_cast<std::int32_t*>(chosen.data()), chosen.size()};
  const auto done = select_keys(gpu.ops, on_gpu);
  ASSERT_TRUE(done.ok()) << done.error().message();
  ASSERT_TRUE(gpu.backend->wait().ok());
  ASSERT_TRUE(gpu.backend
                  ->download(gpu.ops, reinterpret_cast<const std::byte*>(chosen.data()),
                             std::as_writable_bytes(std::span(got)))
                  .ok());
  for (std::int64_t r = 0; r < rows; ++r) {
    const auto row = [&](const std::vector<std::int32_t>& list) {
      return std::vector(list.begin() + r * k, list.begin() + (r + 1) * k);
    };
    EXPECT_EQ(row(got), row(wanted)) << "row " << r;
  }
}

}  // namespace
}  // namespace lathe
