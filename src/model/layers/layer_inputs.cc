#include "model/layers/layer_inputs.h"

#include <cmath>

#include "base/rows.h"
#include "ops/cache_write.h"
#include "ops/elementwise.h"
#include "ops/matmul.h"

namespace lathe {

MutableRowsView layer_inputs(const OpsContext& ops, const ModelConfig& config,
                             const ModelWeights& weights, std::span<const std::int32_t> tokens,
                             const MutableRowsView& x) {
  const std::int64_t width = config.layer_inputs.width;
  const MutableRowsView out = alloc_rows(*ops.tensors, x.rows, config.layers * width);
  if (width == 0) return out;
  const Arena::Scope scope(*ops.tensors);
  const MutableRowsView rows = alloc_rows(*ops.tensors, x.rows, out.cols);
  const MutableRowsView from = activations_of(ops, x);
  if (from.data != x.data) cast_rows(ops, constant(x), from);
  matmul(ops, {constant(from), weights.input_projection, out});
  scale_rows(ops, out, 1 / std::sqrt(static_cast<float>(config.hidden)));
  rms_norm(ops, constant(out), weights.input_norm, config.norm_eps, out, config.layers);
  const float scale = std::sqrt(static_cast<float>(width) / 2);
  embed(ops, weights.input_embedding, tokens, rows, scale);
  add_rows(ops, constant(rows), out);
  return out;
}

void add_layer_input(const LayerContext& c, const LayerWeights& w, const MutableRowsView& x) {
  Arena& arena = *c.ops.tensors;
  const Arena::Scope scope(arena);
  const MutableRowsView from = activations_of(c.ops, x);
  if (from.data != x.data) cast_rows(c.ops, constant(x), from);
  const MutableRowsView gate = alloc_rows(arena, x.rows, c.inputs.cols);
  const MutableRowsView gated = alloc_activations(c.ops, x.rows, c.inputs.cols);
  const MutableRowsView y = alloc_rows(arena, x.rows, x.cols);
  matmul(c.ops, {constant(from), w.input_gate, gate});
  gated_activation(c.ops, {c.config.activation, constant(gate), c.inputs, gated});
  matmul(c.ops, {constant(gated), w.input_out, y});
  add_rms_norm(c.ops, constant(y), w.input_norm, c.config.norm_eps, x);
}

}  // namespace lathe
