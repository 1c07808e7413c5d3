// The feed-forward part of a layer: gated; dense, or a mixture of experts.
#pragma once

#include <cstdint>
#include <span>

#include "base/rows_view.h"
#include "kernels/context.h"
#include "model/config/config.h"
#include "model/weights/weights.h"

namespace lathe {

/// x = down(activation(gate h, up h)), or x += with `add`. h, x: [rows, hidden] f32. factor: [rows,
/// 1] f32: its sigmoid multiplies each row, or no columns.
void dense_ffn(const OpsContext& ops, const Activation& activation, const FfnWeights& w,
               const RowsView& h, const MutableRowsView& x, bool add, const RowsView& factor = {});

/// x = the weighted sum of each row's experts and the shared expert, or x += with `add`. x is f32
/// or, without `add`, Backend::activations(). tokens: [rows] if experts are looked up by token.
/// routed: what the router reads instead of h, in h's shape and dtype, or no data.
void moe_layer(const OpsContext& ops, const ModelConfig& model, const MoeWeights& w,
               const RowsView& h, const MutableRowsView& x, bool add,
               std::span<const std::int32_t> tokens = {}, const RowsView& routed = {});

}  // namespace lathe
