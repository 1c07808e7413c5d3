// A layer's grouped-query attention: projections, head norms, RoPE, cache write, attention.
#pragma once

#include "base/result.h"
#include "base/rows_view.h"
#include "model/layers/layer_context.h"
#include "model/weights/weights.h"

namespace lathe {

/// x = out_proj(attention(h)), or x += with `add`. h, x: [rows, hidden] f32. Writes the rows' keys
/// and values to the cache. Errors: an attention kernel's.
Result<void> gqa_attention(const LayerContext& c, const GqaWeights& w, const RowsView& h,
                           const MutableRowsView& x, bool add);

}  // namespace lathe
