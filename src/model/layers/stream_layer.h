// A part of a layer (attention or feed-forward) over a residual state of several streams
// (ops/hyper.h).
#pragma once

#include "base/result.h"
#include "base/rows_view.h"
#include "model/layers/layer_context.h"
#include "model/layers/part_sum.h"
#include "model/weights/weights.h"

namespace lathe {

/// What a part reads, and where its output goes on the way to the streams.
struct StreamRows {
  MutableRowsView h;    // [rows, hidden] activations: the normed mix of the streams
  MutableRowsView y;    // [rows, hidden] f32: the part's output
  MutableRowsView mix;  // [rows, n] f32: how y is added to the streams, as HyperMix::mix
};

/// Allocates the rows, and computes h and mix from all streams, x: [rows, streams * hidden] f32.
StreamRows read_streams(const LayerContext& c, const HyperWeights& w, Vector norm,
                        const RowsView& x);
/// Adds rows.y to the streams.
void write_streams(const LayerContext& c, const StreamRows& rows, const MutableRowsView& x);

/// Applies a part to the state of all streams, x: [rows, streams * hidden] f32. norm: of the part's
/// input. part(h, out) computes this rank's part of the output; its errors are returned.
template <class Part>
Result<void> stream_part(const LayerContext& c, const HyperWeights& w, Vector norm,
                         const MutableRowsView& x, const Part& part) {
  const Arena::Scope scope(*c.ops.tensors);
  const StreamRows rows = read_streams(c, w, norm, constant(x));
  {
    const Arena::Scope of_part(*c.ops.tensors);
    const MutableRowsView out = part_rows(c.ops, rows.y);
    if (auto ok = part(constant(rows.h), out); !ok) return ok;
    sum_part(c.ops, out, rows.y, false);
  }
  write_streams(c, rows, x);
  return {};
}

}  // namespace lathe
