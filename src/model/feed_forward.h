// The feed-forward part of a layer: gated SiLU, dense or a mixture of experts.
#pragma once

#include "base/rows_view.h"
#include "kernels/context.h"
#include "model/config.h"
#include "model/weights.h"

namespace lathe {

/// x += down(silu(gate h) * up h). h, x: [rows, hidden] f32.
void dense_ffn(const OpsContext& ops, const FfnWeights& w, const RowsView& h,
               const MutableRowsView& x);

/// x += the chosen experts of each row, weighted, and the shared experts.
void moe_layer(const OpsContext& ops, const MoeConfig& config, const MoeWeights& w,
               const RowsView& h, const MutableRowsView& x);

}  // namespace lathe
