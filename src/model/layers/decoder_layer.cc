#include "model/layers/decoder_layer.h"

#include "base/rows.h"
#include "model/layers/compressed_attention.h"
#include "model/layers/delta_layer.h"
#include "model/layers/feed_forward.h"
#include "model/layers/gqa_attention.h"
#include "model/layers/layer_inputs.h"
#include "model/layers/mla_attention.h"
#include "model/layers/part_sum.h"
#include "model/layers/stream_layer.h"
#include "ops/elementwise.h"
#include "ops/exchange.h"

namespace lathe {
namespace {

// x += part(h), and then h = the norm of x if the next part has one. part(out, add) computes out =
// the part's output of this rank, or out +=. With out_norm the output is normed before it is added.
// Where some parts' outputs are, all ranks keep all rows of x.
template <class Part>
Result<void> add_part(const LayerContext& c, const MutableRowsView& x, const MutableRowsView& h,
                      Vector out_norm, const std::optional<InputNorm>& next, const Part& part) {
  const OpsContext& ops = c.ops;
  const Arena::Scope scope(*ops.tensors);
  const bool adds = out_norm.empty();
  const MutableRowsView to = adds ? x : alloc_rows(*ops.tensors, x.rows, x.cols);
  const MutableRowsView out = part_rows(ops, to);
  if (auto ok = part(out, adds && ops.communicator == nullptr); !ok) return ok;
  if (ops.communicator != nullptr && c.config.norms.of_inputs_alone() && next) {
    sum_norm(ops, {.partial = constant(out),
                   .x = x,
                   .weight = next->weight,
                   .eps = c.config.norm_eps,
                   .h = h,
                   .owned = true});
    gate_input(ops, next->gate, h);
    return {};
  }
  sum_part(ops, out, to, adds);
  if (!adds) add_rms_norm(ops, constant(to), out_norm, c.config.norm_eps, x);
  if (next) norm_input(ops, x, *next, c.config.norm_eps, h);
  return {};
}

// x += the norm of a sum: of the dense part of h, normed, and of the experts of x, normed. h is
// overwritten.
void dense_and_experts(const LayerContext& c, const LayerWeights& w, const MutableRowsView& x,
                       const MutableRowsView& h) {
  const OpsContext& ops = c.ops;
  const Arena::Scope scope(*ops.tensors);
  const float eps = c.config.norm_eps;
  const MutableRowsView sum = alloc_rows(*ops.tensors, x.rows, x.cols);
  const MutableRowsView made = alloc_rows(*ops.tensors, x.rows, x.cols);
  const auto make = [&](const auto& part) {
    const Arena::Scope of_part(*ops.tensors);
    const MutableRowsView out = part_rows(ops, made);
    part(out);
    sum_part(ops, out, made, false);
  };
  make([&](const MutableRowsView& out) {
    dense_ffn(ops, c.config.activation, w.ffn, constant(h), out, false);
  });
  rms_norm(ops, constant(made), w.dense_out_norm, eps, sum);
  rms_norm(ops, constant(x), w.experts_norm, eps, h);
  make([&](const MutableRowsView& out) {
    MutableRowsView routed;
    if (!w.moe.router_norm.empty()) {
      routed = alloc_activations(ops, x.rows, x.cols);
      rms_norm(ops, constant(x), w.moe.router_norm, eps, routed);
    }
    moe_layer(ops, c.config, w.moe, constant(h), out, false, {}, constant(routed));
  });
  add_rms_norm(ops, constant(made), w.experts_out_norm, eps, sum);
  add_rms_norm(ops, constant(sum), w.ffn_out_norm, eps, x);
}

// out = the attention or delta rule of h, or out +=. `add`: never with several streams.
Result<void> attention(const LayerContext& c, const LayerWeights& w, const RowsView& h,
                       const MutableRowsView& out, bool add) {
  if (c.config.is_delta(c.layer)) return delta_layer(c, w.delta, h, out, add);
  if (c.config.is_compressed()) return compressed_attention(c, w.compressed, w.indexer, h, out);
  if (!c.config.is_mla()) return gqa_attention(c, w.gqa, h, out, add);
  const bool indexed = !c.config.mla.own_indexer.empty() &&
                       c.config.mla.own_indexer[static_cast<std::size_t>(c.layer)] != 0;
  return mla_attention(c, w.mla, indexed ? &w.indexer : nullptr, h, out, add);
}

// out = the dense part or the experts of h, or out +=.
void feed_forward(const LayerContext& c, const LayerWeights& w, const RowsView& h,
                  const MutableRowsView& out, bool add) {
  if (w.moe.experts.gate.count() == 0) {
    return dense_ffn(c.ops, c.config.activation, w.ffn, h, out, add);
  }
  moe_layer(c.ops, c.config, w.moe, h, out, add, c.tokens);
}

}  // namespace

Result<void> run_layer(const LayerContext& c, const LayerWeights& w, const MutableRowsView& x,
                       const MutableRowsView& h, const std::optional<InputNorm>& next) {
  if (c.config.hyper.streams > 0) {
    const auto attends = [&](const RowsView& in, const MutableRowsView& out) {
      return attention(c, w, in, out, false);
    };
    const auto feeds = [&](const RowsView& in, const MutableRowsView& out) -> Result<void> {
      feed_forward(c, w, in, out, false);
      return {};
    };
    if (auto ok = stream_part(c, w.attention_hyper, w.attention_norm, x, attends); !ok) return ok;
    return stream_part(c, w.ffn_hyper, w.ffn_norm, x, feeds);
  }
  const auto attends = [&](const MutableRowsView& out, bool add) {
    return attention(c, w, constant(h), out, add);
  };
  const auto feeds = [&](const MutableRowsView& out, bool add) -> Result<void> {
    feed_forward(c, w, constant(h), out, add);
    return {};
  };
  const InputNorm ffn_norm{w.ffn_norm, &w.ffn_gate};
  if (auto ok = add_part(c, x, h, w.attention_out_norm, ffn_norm, attends); !ok) return ok;
  const bool both = w.moe.experts.gate.count() > 0 && !w.dense_out_norm.empty();
  const Vector out_norm = w.ffn_out_norm.empty() ? w.experts_out_norm : w.ffn_out_norm;
  if (!both && w.scale.empty()) return add_part(c, x, h, out_norm, next, feeds);
  if (both) {
    dense_and_experts(c, w, x, h);
  } else if (auto ok = add_part(c, x, h, out_norm, std::nullopt, feeds); !ok) {
    return ok;
  }
  if (c.inputs.cols > 0) add_layer_input(c, w, x);
  if (!w.scale.empty()) scale_rows(c.ops, x, w.scale);
  if (next) norm_input(c.ops, x, *next, c.config.norm_eps, h);
  return {};
}

}  // namespace lathe
