// Sorts tokens by expert, multiplies, and adds the weighted results.
#include "kernels/cpu/moe/moe.h"

#include <algorithm>
#include <cstring>

#include "base/check.h"
#include "base/rows.h"
#include "kernels/cpu/common/for_rows.h"
#include "kernels/cpu/matmul/matmul.h"
#include "kernels/cpu/moe/route.h"
#include "kernels/cpu/rowwise/rowwise.h"
#include "kernels/limits.h"

namespace lathe {

ExpertOrder sort_by_expert(Arena& arena, std::span<const std::int32_t> ids, std::int64_t tokens,
                           std::int64_t top_k, std::int64_t first, std::int64_t experts) {
  const std::int64_t all = tokens * top_k;
  auto* begin = arena.take_array<std::int64_t>(experts + 1);
  auto* next = arena.take_array<std::int64_t>(experts);
  auto* pair = arena.take_array<std::int64_t>(all);
  auto* place = arena.take_array<std::int64_t>(all);
  auto* seen = arena.take_array<std::int64_t>(tokens);  // pairs of each token placed so far
  std::fill_n(begin, experts + 1, 0);
  const auto here = [&](std::int64_t expert) { return expert >= 0 && expert < experts; };
  for (const std::int32_t id : ids) {
    if (here(id - first)) ++begin[id - first + 1];
  }
  for (std::int64_t e = 0; e < experts; ++e) begin[e + 1] += begin[e];
  std::copy_n(begin, experts, next);
  for (std::int64_t i = 0; i < all; ++i) {
    const std::int64_t expert = ids[static_cast<std::size_t>(i)] - first;
    if (here(expert)) pair[next[expert]++] = i;
  }
  const std::int64_t pairs = begin[experts];
  std::fill_n(place, all, -1);
  std::fill_n(seen, tokens, 0);
  for (std::int64_t i = 0; i < pairs; ++i) {
    const std::int64_t token = pair[i] / top_k;
    place[token * top_k + seen[token]++] = i;
  }
  return {pairs, top_k, begin, pair, place};
}

void cpu_gather_rows(const Execution& execution, const RowsView& x, std::span<const float> weights,
                     const ExpertOrder& order, std::int64_t first, const MutableRowsView& out) {
  for_rows(execution, out.rows, out.cols, [&](std::int64_t i) {
    const std::int64_t pair = order.pair[first + i];
    std::memcpy(out.row(i), x.row(pair / order.top_k), static_cast<std::size_t>(4 * x.cols));
    if (weights.empty()) return;
    auto* row = reinterpret_cast<float*>(out.row(i));
    for (std::int64_t c = 0; c < x.cols; ++c) row[c] *= weights[static_cast<std::size_t>(pair)];
  });
}

void cpu_scatter_rows(const Execution& execution, const RowsView& y, std::span<const float> weights,
                      const ExpertOrder& order, std::int64_t first, const MutableRowsView& out) {
  for_rows(execution, out.rows, order.top_k * out.cols, [&](std::int64_t token) {
    for (std::int64_t j = 0; j < order.top_k; ++j) {
      const std::int64_t place = order.place[token * order.top_k + j] - first;
      if (place < 0 || place >= y.rows) continue;
      const std::int64_t pair = order.pair[first + place];
      cpu_add_scaled(reinterpret_cast<const float*>(y.row(place)),
                     weights.empty() ? 1 : weights[static_cast<std::size_t>(pair)], y.cols,
                     reinterpret_cast<float*>(out.row(token)));
    }
  });
}

void cpu_expert_ffn(const OpsContext& ops, const ExpertLayer& op, std::span<const std::int32_t> ids,
                    std::span<const float> weights) {
  const ExpertStacks& e = *op.experts;
  const std::int64_t count = e.gate.count();
  const std::int64_t experts = std::max<std::int64_t>(op.choice.experts, count);
  for (const std::int32_t id : ids) LATHE_CHECK(id >= 0 && id < experts, "ids name experts");
  Arena& arena = *ops.tensors;
  const Arena::Scope scope(arena);
  const Arena::Scope control(*ops.control);
  for (std::int64_t t = 0; !op.add && t < op.out.rows; ++t) {
    std::fill_n(reinterpret_cast<float*>(op.out.row(t)), op.out.cols, 0.0f);
  }
  const ExpertOrder order =
      sort_by_expert(*ops.control, ids, op.x.rows, op.choice.top_k, op.first, count);
  const auto bias_of = [&](std::span<const float> biases, std::int64_t expert) -> const float* {
    const std::int64_t width = std::ssize(biases) / count;
    return biases.empty() ? nullptr : biases.data() + expert * width;
  };
  const std::int64_t most = std::min(kCpuExpertInputs, order.pairs);
  const MutableRowsView rows = alloc_rows(arena, most, op.x.cols);  // in, then each expert's out
  const MutableRowsView gate = alloc_rows(arena, most, e.gate.rows);
  const bool turns = e.up.count() == 0;  // gate holds both
  const MutableRowsView up = turns ? MutableRowsView{} : alloc_rows(arena, most, e.up.rows);
  auto* products = ops.control->take_array<Product>(2 * count);
  const std::span<const float> none;
  const std::span<const float> before = op.choice.weighs_inputs ? weights : none;
  const std::span<const float> after = op.choice.weighs_inputs ? none : weights;

  for (std::int64_t first = 0; first < order.pairs; first += most) {
    const std::int64_t n = std::min(most, order.pairs - first);
    cpu_gather_rows(ops.execution, op.x, before, order, first, rows_at(rows, 0, n));
    std::int64_t last = 0;
    const auto for_experts = [&](auto&& body) {
      for (std::int64_t i = 0; i < count; ++i) {
        const std::int64_t begin = std::max(order.begin[i], first) - first;
        const std::int64_t end = std::min(order.begin[i + 1], first + n) - first;
        if (begin < end) body(i, begin, end - begin);
      }
    };
    const auto multiply = [&] {
      cpu_matmul(ops.execution, arena, ops.precision, {products, static_cast<std::size_t>(last)});
      last = 0;
    };
    for_experts([&](std::int64_t i, std::int64_t at, std::int64_t m) {
      const RowsView x = constant(rows_at(rows, at, m));
      products[last++] = {x, e.gate.at(i), rows_at(gate, at, m), bias_of(e.gate_bias, i)};
      if (!turns) products[last++] = {x, e.up.at(i), rows_at(up, at, m)};
    });
    multiply();
    const MutableRowsView hidden = cols_at(rows_at(gate, 0, n), 0, e.down.cols);
    cpu_gated_activation(ops.execution, {op.activation, constant(rows_at(gate, 0, n)),
                                         turns ? RowsView{} : constant(rows_at(up, 0, n)), hidden});
    for_experts([&](std::int64_t i, std::int64_t at, std::int64_t m) {
      products[last++] = {constant(rows_at(hidden, at, m)), e.down.at(i), rows_at(rows, at, m),
                          bias_of(e.down_bias, i)};
    });
    multiply();
    cpu_scatter_rows(ops.execution, constant(rows_at(rows, 0, n)), after, order, first, op.out);
  }
}

void cpu_expert_layer(const OpsContext& ops, const ExpertLayer& op) {
  const Arena::Scope scope(*ops.tensors);
  const Arena::Scope control(*ops.control);
  const MutableRowsView logits = alloc_rows(*ops.tensors, op.x.rows, op.choice.experts);
  // In f32: rounding of the activations should not change which experts a token gets.
  const Product product{op.of_router(), op.router, logits,
                        op.router_bias.empty() ? nullptr : op.router_bias.data()};
  cpu_matmul(ops.execution, *ops.tensors, MatmulPrecision::f32, {&product, 1});
  const std::int64_t chosen = op.x.rows * op.choice.top_k;
  const auto n = static_cast<std::size_t>(chosen);
  const std::span ids(ops.control->take_array<std::int32_t>(chosen), n);
  const std::span weights(ops.control->take_array<float>(chosen), n);
  cpu_route(ops.execution, *ops.tensors, op.choice, constant(logits), ids, weights, op.tokens);
  cpu_expert_ffn(ops, op, ids, weights);
}

}  // namespace lathe
