#include "ops/moe.h"

#include <algorithm>

#include "base/check.h"
#include "kernels/cpu/moe.h"
#include "kernels/cpu/route.h"
#include "kernels/ref/moe.h"
#include "ops/elementwise.h"
#include "ops/matmul.h"

namespace lathe {
namespace {

// Rows that go through the experts in one pass: what bounds the memory of a long prompt, at the
// price of one expert's weights read twice where a pass ends inside it.
constexpr std::int64_t kPassRows = 1024;

MutableRowsView take_rows(Arena& arena, std::int64_t rows, std::int64_t cols) {
  const std::int64_t stride = (cols + 15) / 16 * 16;
  return {arena.take(rows * stride * 4), DType::f32, rows, cols, stride};
}
RowsView rows_of(const MutableRowsView& v, std::int64_t first, std::int64_t rows) {
  return {v.row(first), v.dtype, rows, v.cols, v.row_stride};
}
MutableRowsView mutable_rows_of(const MutableRowsView& v, std::int64_t first, std::int64_t rows) {
  return {v.row(first), v.dtype, rows, v.cols, v.row_stride};
}

void check_alike(const WeightView& a, const WeightView& b) {
  LATHE_CHECK(a.dtype == b.dtype && a.rows == b.rows && a.cols == b.cols, "experts of one shape");
}

}  // namespace

void route(const OpsContext& ops, const Router& router, const RowsView& logits,
           std::span<std::int32_t> ids, std::span<float> weights) {
  LATHE_CHECK(logits.dtype == DType::f32 && logits.cols == router.experts, "logits [T, experts]");
  LATHE_CHECK(router.top_k >= 1 && router.top_k <= router.experts, "top_k of the experts");
  LATHE_CHECK(router.groups >= 1 && router.experts % router.groups == 0, "groups divide experts");
  LATHE_CHECK(router.top_groups >= 1 && router.top_groups <= router.groups, "of the groups");
  LATHE_CHECK(router.bias.empty() || std::ssize(router.bias) == router.experts, "bias [experts]");
  LATHE_CHECK(std::ssize(ids) == logits.rows * router.top_k, "ids [T, top_k]");
  LATHE_CHECK(ids.size() == weights.size(), "weights [T, top_k]");
  if (ops.device == Device::ref) return ref_route(router, logits, ids, weights);
  LATHE_CHECK(ops.device == Device::cpu, "route runs on ref and cpu");
  cpu_route(ops.execution, *ops.arena, router, logits, ids, weights);
}

void moe_ffn(const OpsContext& ops, const RowsView& x, std::span<const ExpertWeights> experts,
             std::span<const std::int32_t> ids, std::span<const float> weights, std::int64_t top_k,
             const MutableRowsView& out) {
  const std::int64_t count = std::ssize(experts);
  LATHE_CHECK(count > 0 && x.dtype == DType::f32 && out.dtype == DType::f32, "experts; f32 rows");
  LATHE_CHECK(x.rows == out.rows && x.cols == out.cols, "x and out of one shape");
  LATHE_CHECK(std::ssize(ids) == x.rows * top_k && ids.size() == weights.size(), "ids [T, top_k]");
  for (const ExpertWeights& e : experts) {
    check_alike(e.gate, experts[0].gate);
    check_alike(e.up, experts[0].gate);
    check_alike(e.down, experts[0].down);
  }
  for (const std::int32_t id : ids) LATHE_CHECK(id >= 0 && id < count, "ids name experts");
  if (ops.device == Device::ref) return ref_moe_ffn(x, experts, ids, weights, top_k, out);
  LATHE_CHECK(ops.device == Device::cpu, "moe_ffn runs on ref and cpu");

  Arena& arena = *ops.arena;
  const Arena::Scope scope(arena);
  const ExpertOrder order = sort_by_expert(arena, ids, x.rows, top_k, count);
  const std::int64_t most = std::min(kPassRows, order.pairs);
  const MutableRowsView rows = take_rows(arena, most, x.cols);  // in, then each expert's out
  const MutableRowsView gate = take_rows(arena, most, experts[0].gate.rows);
  const MutableRowsView up = take_rows(arena, most, experts[0].gate.rows);
  auto* products = arena.take_array<Product>(2 * count);

  for (std::int64_t first = 0; first < order.pairs; first += most) {
    const std::int64_t n = std::min(most, order.pairs - first);
    cpu_gather_rows(ops.execution, x, order, first, mutable_rows_of(rows, 0, n));
    std::int64_t last = 0;
    const auto for_experts = [&](auto&& body) {
      for (std::int64_t e = 0; e < count; ++e) {
        const std::int64_t begin = std::max(order.begin[e], first) - first;
        const std::int64_t end = std::min(order.begin[e + 1], first + n) - first;
        if (begin < end) body(experts[static_cast<std::size_t>(e)], begin, end - begin);
      }
    };
    for_experts([&](const ExpertWeights& e, std::int64_t at, std::int64_t m) {
      products[last++] = {rows_of(rows, at, m), e.gate, mutable_rows_of(gate, at, m)};
      products[last++] = {rows_of(rows, at, m), e.up, mutable_rows_of(up, at, m)};
    });
    matmul(ops, std::span(products, static_cast<std::size_t>(last)));
    silu_mul(ops, rows_of(gate, 0, n), rows_of(up, 0, n), mutable_rows_of(gate, 0, n));
    last = 0;
    for_experts([&](const ExpertWeights& e, std::int64_t at, std::int64_t m) {
      products[last++] = {rows_of(gate, at, m), e.down, mutable_rows_of(rows, at, m)};
    });
    matmul(ops, std::span(products, static_cast<std::size_t>(last)));
    cpu_scatter_rows(ops.execution, rows_of(rows, 0, n), weights, order, first, out);
  }
}

}  // namespace lathe
