// A layer of the decoder.
#pragma once

#include <optional>

#include "base/result.h"
#include "base/rows_view.h"
#include "model/layers/input_norm.h"
#include "model/layers/layer_context.h"
#include "model/weights/weights.h"

namespace lathe {

/// A layer of attention or of a delta rule, then dense or with experts, or both. x: the residual
/// state, f32. h: the norm of x before the layer, and after it the norm `next`, if there is one;
/// unused with several streams. The combinations that it computes are in
/// model/config/layer_flags.h, which refuses all others.
Result<void> run_layer(const LayerContext& c, const LayerWeights& w, const MutableRowsView& x,
                       const MutableRowsView& h, const std::optional<InputNorm>& next);

}  // namespace lathe
