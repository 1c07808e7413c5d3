#include "model/layers/feed_forward.h"

#include "base/rows.h"
#include "ops/elementwise.h"
#include "ops/matmul.h"
#include "ops/moe.h"

namespace lathe {

void dense_ffn(const OpsContext& ops, const Activation& activation, const FfnWeights& w,
               const RowsView& h, const MutableRowsView& x, bool add) {
  const Arena::Scope scope(*ops.tensors);
  const MutableRowsView hidden = alloc_activations(ops, h.rows, w.gate.rows);
  gated_matmul(ops, {h, w.gate, w.up, activation, hidden});
  matmul(ops, {constant(hidden), w.down, x, nullptr, add});
}

void routed_experts(const OpsContext& ops, const ModelConfig& model, const MoeWeights& w,
                    const RowsView& h, const MutableRowsView& x,
                    std::span<const std::int32_t> tokens) {
  const MoeConfig& config = model.moe;
  const Router router{.scoring = config.scoring,
                      .experts = config.experts,
                      .top_k = config.top_k,
                      .groups = config.groups,
                      .top_groups = config.top_groups,
                      .group_best = config.group_best,
                      .bias = w.bias,
                      .token_experts = w.token_experts,
                      .normalize = config.normalize,
                      .scale = config.scale};
  expert_layer(ops, {h, w.router, w.router_bias, router, model.activation, &w.experts, x, tokens});
}

void moe_layer(const OpsContext& ops, const ModelConfig& model, const MoeWeights& w,
               const RowsView& h, const MutableRowsView& x) {
  routed_experts(ops, model, w, h, x);
  if (model.moe.shared > 0) dense_ffn(ops, model.activation, w.shared, h, x, true);
}

}  // namespace lathe
