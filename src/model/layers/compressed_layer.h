// A layer of DeepSeek V4: attention and experts over a residual state of several streams.
#pragma once

#include "base/result.h"
#include "base/rows_view.h"
#include "model/layers/layer_context.h"
#include "model/weights/weights.h"

namespace lathe {

/// Applies the layer to the state of all streams, x: [rows, streams * hidden] f32. Errors:
/// compressed_attention()'s.
Result<void> compressed_layer(const LayerContext& c, const LayerWeights& w,
                              const MutableRowsView& x);

}  // namespace lathe
