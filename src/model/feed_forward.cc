#include "model/feed_forward.h"

#include <array>

#include "ops/elementwise.h"
#include "ops/matmul.h"
#include "ops/moe.h"
#include "ops/rows.h"

namespace lathe {

void dense_ffn(const OpsContext& ops, const FfnWeights& w, const RowsView& h,
               const MutableRowsView& x) {
  const Arena::Scope scope(*ops.arena);
  const MutableRowsView gate = take_rows(*ops.arena, h.rows, w.gate.rows);
  const MutableRowsView up = take_rows(*ops.arena, h.rows, w.up.rows);
  matmul(ops, std::array{Product{h, w.gate, gate}, Product{h, w.up, up}});
  silu_mul(ops, constant(gate), constant(up), gate);
  matmul(ops, {constant(gate), w.down, x, nullptr, true});
}

void moe_layer(const OpsContext& ops, const MoeConfig& config, const MoeWeights& w,
               const RowsView& h, const MutableRowsView& x) {
  const Arena::Scope scope(*ops.arena);
  const Router router{.scoring = config.scoring,
                      .experts = config.experts,
                      .top_k = config.top_k,
                      .groups = config.groups,
                      .top_groups = config.top_groups,
                      .bias = w.bias,
                      .normalize = config.normalize,
                      .scale = config.scale};
  const MutableRowsView logits = take_rows(*ops.arena, h.rows, config.experts);
  // Which experts a token takes should not turn on the rounding of its activations.
  OpsContext exact = ops;
  exact.precision = MatmulPrecision::f32;
  matmul(exact, {h, w.router, logits});
  const std::int64_t chosen = h.rows * config.top_k;
  const std::span ids(ops.arena->take_array<std::int32_t>(chosen),
                      static_cast<std::size_t>(chosen));
  const std::span weights(ops.arena->take_array<float>(chosen), static_cast<std::size_t>(chosen));
  route(ops, router, constant(logits), ids, weights);
  moe_ffn(ops, h, w.experts, ids, weights, config.top_k, x);
  if (config.shared > 0) dense_ffn(ops, w.shared, h, x);
}

}  // namespace lathe
