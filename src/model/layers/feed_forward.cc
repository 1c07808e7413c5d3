#include "model/layers/feed_forward.h"

#include "base/rows.h"
#include "ops/cache_write.h"
#include "ops/elementwise.h"
#include "ops/matmul.h"
#include "ops/moe.h"

namespace lathe {
namespace {

// x = the weighted sum of each row's experts, or x +=.
ExpertLayer routed_experts(const ModelConfig& model, const MoeWeights& w, const RowsView& h,
                           const MutableRowsView& x, std::span<const std::int32_t> tokens,
                           const RowsView& routed, bool add) {
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
                      .scale = config.scale,
                      .expert_scale = w.expert_scale,
                      .weighs_inputs = config.weighs_inputs};
  return {.x = h,
          .router = w.router,
          .router_bias = w.router_bias,
          .choice = router,
          .activation = config.activation.value_or(model.activation),
          .experts = &w.experts,
          .out = x,
          .tokens = tokens,
          .add = add,
          .first = w.first_expert,
          .router_x = routed};
}

// Runs routed and shared experts in the same launches, if the backend can.
bool run_with_shared(const OpsContext& ops, const ModelConfig& model, const MoeWeights& w,
                     const ExpertLayer& experts) {
  if (w.shared.gate.rows == 0) return false;  // a rank may have none of its width
  return expert_layer_with_shared(ops, experts,
                                  {.gate = w.shared.gate,
                                   .up = w.shared.up,
                                   .down = w.shared.down,
                                   .activation = model.activation,
                                   .factor = w.shared_gate});
}

// x = the shared experts' output, or x +=.
void shared_experts(const OpsContext& ops, const ModelConfig& model, const MoeWeights& w,
                    const RowsView& h, const MutableRowsView& x, bool add) {
  const Arena::Scope scope(*ops.tensors);
  MutableRowsView factor;
  if (model.moe.shared_gate) {
    factor = alloc_rows(*ops.tensors, h.rows, 1);
    matmul(ops, {h, w.shared_gate, factor});
  }
  dense_ffn(ops, model.activation, w.shared, h, x, add, constant(factor));
}

}  // namespace

void dense_ffn(const OpsContext& ops, const Activation& activation, const FfnWeights& w,
               const RowsView& h, const MutableRowsView& x, bool add, const RowsView& factor) {
  const Arena::Scope scope(*ops.tensors);
  const MutableRowsView hidden = alloc_activations(ops, h.rows, w.gate.rows);
  if (w.gate.rows > 0) gated_matmul(ops, {h, w.gate, w.up, activation, hidden});
  if (factor.cols > 0) gate_rows(ops, {.x = hidden, .gate = factor});
  matmul(ops, {constant(hidden), w.down, x, nullptr, add});
}

void moe_layer(const OpsContext& ops, const ModelConfig& model, const MoeWeights& w,
               const RowsView& h, const MutableRowsView& x, bool add,
               std::span<const std::int32_t> tokens, const RowsView& routed) {
  if (add) {
    const ExpertLayer experts = routed_experts(model, w, h, x, tokens, routed, true);
    if (run_with_shared(ops, model, w, experts)) return;
    expert_layer(ops, experts);
    if (model.moe.shared > 0) shared_experts(ops, model, w, h, x, true);
    return;
  }
  const Arena::Scope scope(*ops.tensors);
  const bool narrow = x.dtype != DType::f32;
  const MutableRowsView sum = narrow ? alloc_rows(*ops.tensors, x.rows, x.cols) : x;
  ExpertLayer experts = routed_experts(model, w, h, sum, tokens, routed, false);
  if (!run_with_shared(ops, model, w, experts)) {
    experts.add = w.shared.gate.rows > 0;
    if (experts.add) shared_experts(ops, model, w, h, sum, false);
    expert_layer(ops, experts);
  }
  if (narrow) cast_rows(ops, constant(sum), x);
}

}  // namespace lathe
