// A layer's delta rule in place of attention: projections, and the recurrence over a state.
#pragma once

#include "base/result.h"
#include "base/rows_view.h"
#include "model/layers/layer_context.h"
#include "model/weights/weights.h"

namespace lathe {

/// x = out_proj(delta rule(h)), or x += with `add`. h, x: [rows, hidden] f32. Reads and writes the
/// states of the rows' requests. Errors: delta_rule()'s.
Result<void> delta_layer(const LayerContext& c, const DeltaWeights& w, const RowsView& h,
                         const MutableRowsView& x, bool add);

}  // namespace lathe
