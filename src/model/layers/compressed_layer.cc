#include "model/layers/compressed_layer.h"

#include "base/rows.h"
#include "model/layers/compressed_attention.h"
#include "model/layers/feed_forward.h"
#include "model/layers/part_sum.h"
#include "ops/elementwise.h"
#include "ops/hyper.h"
#include "ops/matmul.h"

namespace lathe {
namespace {

// Mixes the streams into the input [rows, hidden] of attention or feed-forward. `mix` receives the
// weights that distribute its output to the streams again.
void mix_streams(const LayerContext& c, const HyperWeights& w, const RowsView& x,
                 const MutableRowsView& out, const MutableRowsView& mix) {
  const Arena::Scope scope(*c.ops.tensors);
  const MutableRowsView product = alloc_rows(*c.ops.tensors, x.rows, w.fn.rows);
  matmul(c.ops, {x, w.fn, product});
  hyper_mix(c.ops, {.x = x,
                    .product = constant(product),
                    .base = w.base,
                    .scale = w.scale,
                    .streams = c.config.hyper.streams,
                    .iterations = c.config.hyper.iterations,
                    .eps = c.config.hyper.eps,
                    .norm_eps = c.config.norm_eps,
                    .out = out,
                    .mix = mix});
}

}  // namespace

Result<void> compressed_layer(const LayerContext& c, const LayerWeights& w,
                              const MutableRowsView& x) {
  Arena& arena = *c.ops.tensors;
  const Arena::Scope scope(arena);
  const std::int64_t streams = c.config.hyper.streams;
  const MutableRowsView mixed = alloc_rows(arena, x.rows, c.config.hidden);
  const MutableRowsView h = activations_of(c.ops, mixed);
  const MutableRowsView y = alloc_rows(arena, x.rows, c.config.hidden);
  const MutableRowsView mix = alloc_rows(arena, x.rows, streams + streams * streams);
  const HyperAdd add{constant(y), constant(mix), c.config.hyper.streams, x};

  mix_streams(c, w.attention_hyper, constant(x), mixed, mix);
  rms_norm(c.ops, constant(mixed), w.attention_norm, c.config.norm_eps, h);
  {
    const Arena::Scope part(arena);
    const MutableRowsView out = part_rows(c.ops, y);
    if (auto ok = compressed_attention(c, w.compressed, w.indexer, constant(h), out); !ok) {
      return ok;
    }
    sum_part(c.ops, out, y, false);
  }
  hyper_add(c.ops, add);

  mix_streams(c, w.ffn_hyper, constant(x), mixed, mix);
  rms_norm(c.ops, constant(mixed), w.ffn_norm, c.config.norm_eps, h);
  const MutableRowsView out = part_rows(c.ops, y);
  moe_layer(c.ops, c.config, w.moe, constant(h), out, false, c.tokens);
  sum_part(c.ops, out, y, false);
  hyper_add(c.ops, add);
  return {};
}

}  // namespace lathe
