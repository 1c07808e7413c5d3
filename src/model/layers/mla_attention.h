// A layer's latent attention (DeepSeek V2 to V3.2, GLM-5): projections, RoPE and cache write, the
// indexer if there is one, attention in absorbed or expanded form, depending on the route's kind.
#pragma once

#include "base/result.h"
#include "base/rows_view.h"
#include "model/layers/layer_context.h"
#include "model/weights/weights.h"

namespace lathe {

/// x = out_proj(attention(h)), or x += with `add`. h, x: [rows, hidden]. `indexer` is null if the
/// layer has none. Writes the rows' latents (and index keys) to the cache. Errors: a kernel's.
Result<void> mla_attention(const LayerContext& c, const MlaWeights& w,
                           const IndexerWeights* indexer, const RowsView& h,
                           const MutableRowsView& x, bool add);

}  // namespace lathe
