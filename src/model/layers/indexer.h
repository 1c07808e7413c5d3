// The indexer of a layer with sparse latent attention: writes index keys, selects the keys that
// attention reads (DeepSeek V3.2, arXiv 2512.02556).
#pragma once

#include "base/result.h"
#include "base/rows_view.h"
#include "model/layers/layer_context.h"
#include "model/weights/weights.h"

namespace lathe {

/// Writes the rows' index keys, and replaces c.selections of segments with a route that needs one.
/// h: [rows, hidden] activations after the layer's norm; q_latent: [rows, q_lora] activations, the
/// normed compressed query; k: [rows, index_dim] f32, the rows' index keys before their norm, which
/// are overwritten. Errors: an indexer kernel's.
Result<void> run_indexer(const LayerContext& c, const IndexerWeights& w, const RowsView& h,
                         const RowsView& q_latent, const MutableRowsView& k);

}  // namespace lathe
