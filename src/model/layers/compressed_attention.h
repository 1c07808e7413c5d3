// Attention over a window and compressed entries (DeepSeek V4, arXiv 2606.19348).
#pragma once

#include "base/result.h"
#include "base/rows_view.h"
#include "model/layers/layer_context.h"
#include "model/weights/weights.h"

namespace lathe {

/// y = the layer's attention. Writes the rows' window keys, the entries and index keys that they
/// complete, and the state after them. `index` is used only if the layer chooses among its entries.
/// h, y: [rows, hidden] f32, h after the layer's norm. Errors: an attention or indexer kernel's.
Result<void> compressed_attention(const LayerContext& c, const CompressedWeights& w,
                                  const IndexerWeights& index, const RowsView& h,
                                  const MutableRowsView& y);

}  // namespace lathe
