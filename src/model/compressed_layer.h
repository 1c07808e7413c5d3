// A layer of DeepSeek V4: attention and experts over a residual state of several streams.
#pragma once

#include "base/result.h"
#include "base/rows_view.h"
#include "model/layer_context.h"
#include "model/weights.h"

namespace lathe {

/// The state of all streams becomes that after the layer. x: [rows, streams * hidden] f32. Errors:
/// those of compressed_attention().
Result<void> compressed_layer(const LayerContext& c, const LayerWeights& w,
                              const MutableRowsView& x);

}  // namespace lathe
