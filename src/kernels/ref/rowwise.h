// Row-wise operators in double precision. Arguments as in ops/elementwise.h.
#pragma once

#include <cstdint>
#include <span>

#include "base/rows_view.h"
#include "kernels/linear.h"

namespace lathe {

void ref_rms_norm(const RowsView& x, std::span<const float> weight, float eps,
                  const MutableRowsView& out, std::int64_t heads);
void ref_layer_norm(const RowsView& x, std::span<const float> weight, std::span<const float> bias,
                    float eps, const MutableRowsView& out);
void ref_silu_mul(const RowsView& gate, const RowsView& up, const MutableRowsView& out);
void ref_add_rows(const RowsView& x, const MutableRowsView& out);
void ref_embed(const WeightView& table, std::span<const std::int32_t> tokens,
               const MutableRowsView& out);

}  // namespace lathe
