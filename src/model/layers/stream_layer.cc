#include "model/layers/stream_layer.h"

#include "base/rows.h"
#include "ops/elementwise.h"
#include "ops/hyper.h"
#include "ops/matmul.h"

namespace lathe {

StreamRows read_streams(const LayerContext& c, const HyperWeights& w, Vector norm,
                        const RowsView& x) {
  Arena& arena = *c.ops.tensors;
  const HyperConfig& hyper = c.config.hyper;
  const MutableRowsView mixed = alloc_rows(arena, x.rows, c.config.hidden);
  const StreamRows rows{.h = activations_of(c.ops, mixed),
                        .y = alloc_rows(arena, x.rows, c.config.hidden),
                        .mix = alloc_rows(arena, x.rows, w.fn.rows - hyper.streams)};
  {
    const Arena::Scope scope(arena);
    const MutableRowsView product = alloc_rows(arena, x.rows, w.fn.rows);
    matmul(c.ops, {x, w.fn, product});
    hyper_mix(c.ops, {.x = x,
                      .product = constant(product),
                      .base = w.base,
                      .scale = w.scale,
                      .streams = hyper.streams,
                      .iterations = hyper.iterations,
                      .eps = hyper.eps,
                      .post_scale = hyper.post_scale,
                      .post_eps = hyper.post_eps,
                      .norm_eps = c.config.norm_eps,
                      .out = mixed,
                      .mix = rows.mix});
  }
  rms_norm(c.ops, constant(mixed), norm, c.config.norm_eps, rows.h);
  return rows;
}

void write_streams(const LayerContext& c, const StreamRows& rows, const MutableRowsView& x) {
  hyper_add(c.ops, {constant(rows.y), constant(rows.mix), c.config.hyper.streams, x});
}

}  // namespace lathe
