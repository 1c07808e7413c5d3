// Row-wise operators on the CPU: norms, activations, sums, embedding. Arguments as in
// ops/elementwise.h.
#pragma once

#include <cstdint>
#include <span>

#include "base/execution.h"
#include "base/rows_view.h"
#include "kernels/linear.h"
#include "kernels/operators.h"

namespace lathe {

void cpu_rms_norm(const Execution& execution, const RmsNorm& op);
void cpu_layer_norm(const Execution& execution, const LayerNorm& op);
void cpu_gated_activation(const Execution& execution, const GatedActivation& op);
void cpu_gate_rows(const Execution& execution, const GateRows& op);
void cpu_add_rows(const Execution& execution, const RowsView& x, const MutableRowsView& out);
void cpu_scale_rows(const Execution& execution, const ScaleRows& op);
void cpu_embed(const Execution& execution, const Embed& op);

void cpu_gather_rows(const Execution& execution, const RowsView& x,
                     std::span<const std::int32_t> rows, const MutableRowsView& out);
void cpu_find_non_finite(const Execution& execution, const FindNonFinite& op);

/// out[0, n) += factor * x[0, n), one multiply-add per element.
void cpu_add_scaled(const float* x, float factor, std::int64_t n, float* out);

}  // namespace lathe
