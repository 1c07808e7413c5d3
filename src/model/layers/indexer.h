// The indexer of a layer with sparse latent attention: writes index keys, selects the keys that
// attention reads (DeepSeek V3.2, arXiv 2512.02556).
#pragma once

#include "base/result.h"
#include "base/rows_view.h"
#include "model/layers/layer_context.h"
#include "model/weights/weights.h"

namespace lathe {

/// Whether a row has more keys than top-k and ranks them, so that queries are needed.
bool ranks_keys(const LayerContext& c);

/// The indexer's projections, f32, which run_indexer() overwrites. Without ranks_keys(), q and
/// weights have no rows.
struct IndexerInputs {
  MutableRowsView k;        // [rows, index_dim] of h, before the norm
  MutableRowsView q;        // [rows, index_heads * index_dim] of the normed compressed query
  MutableRowsView weights;  // [rows, index_heads] of h
};

/// Writes the rows' index keys, and replaces c.selections of segments with a route that needs one.
/// h: [rows, hidden] activations after the layer's norm. Errors: an indexer kernel's.
Result<void> run_indexer(const LayerContext& c, const IndexerWeights& w, const RowsView& h,
                         const IndexerInputs& in);

}  // namespace lathe
