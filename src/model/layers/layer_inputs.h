// Inputs of layers besides the residual state (LayerInputs in model/config/config.h).
#pragma once

#include <cstdint>
#include <span>

#include "base/rows_view.h"
#include "kernels/context.h"
#include "model/layers/layer_context.h"
#include "model/weights/weights.h"

namespace lathe {

/// The inputs of all layers, [rows, layers * width] f32 in ops.tensors; no columns if the model has
/// none. x: [rows, hidden] f32, the tokens' embeddings.
MutableRowsView layer_inputs(const OpsContext& ops, const ModelConfig& config,
                             const ModelWeights& weights, std::span<const std::int32_t> tokens,
                             const MutableRowsView& x);

/// x += norm(W_out (activation(W_gate x) * c.inputs)). x: [rows, hidden] f32.
void add_layer_input(const LayerContext& c, const LayerWeights& w, const MutableRowsView& x);

}  // namespace lathe
