// Row-wise operators in double precision. Arguments as in ops/elementwise.h.
#pragma once

#include <cstdint>
#include <span>

#include "base/rows_view.h"
#include "kernels/linear.h"
#include "kernels/operators.h"

namespace lathe {

void ref_rms_norm(const RmsNorm& op);
void ref_layer_norm(const LayerNorm& op);
/// The activation of v, an element of the gate projection, and u, of the up projection.
double activated(const Activation& how, double v, double u);
void ref_gated_activation(const GatedActivation& op);
void ref_gate_rows(const GateRows& op);
void ref_add_rows(const RowsView& x, const MutableRowsView& out);
void ref_scale_rows(const ScaleRows& op);
void ref_embed(const Embed& op);
void ref_gather_rows(const RowsView& x, std::span<const std::int32_t> rows,
                     const MutableRowsView& out);
void ref_cast_rows(const RowsView& x, const MutableRowsView& out);
void ref_find_non_finite(const FindNonFinite& op);

}  // namespace lathe
