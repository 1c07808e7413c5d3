#include "model/layers/head.h"

#include "base/rows.h"
#include "ops/cache_write.h"
#include "ops/elementwise.h"
#include "ops/exchange.h"
#include "ops/hyper.h"
#include "ops/matmul.h"

namespace lathe {

bool ends_in_norm(const OpsContext& ops, const DecoderView& m) {
  return ops.communicator != nullptr && m.config.norms.of_inputs_alone() &&
         m.config.hyper.streams == 0;
}

MutableRowsView head_streams(const OpsContext& ops, const DecoderView& m, const HyperWeights& w,
                             const RowsView& x) {
  const MutableRowsView out = alloc_rows(*ops.tensors, x.rows, m.config.hidden);
  const MutableRowsView product = alloc_rows(*ops.tensors, x.rows, w.fn.rows);
  if (w.fn.rows > 0) matmul(ops, {x, w.fn, product});
  hyper_head(ops, {.x = x,
                   .product = constant(product),
                   .base = w.base,
                   .scale = w.scale,
                   .streams = m.config.hyper.streams,
                   .eps = m.config.hyper.eps,
                   .norm_eps = m.config.norm_eps,
                   .out = out});
  return out;
}

void logits(const OpsContext& ops, const DecoderView& m, const MutableRowsView& x,
            const ForwardArgs& args, NonFiniteSearch& search) {
  const Arena::Scope scope(*ops.tensors);
  MutableRowsView last = alloc_rows(*ops.tensors, std::ssize(args.logit_rows), x.cols);
  gather_rows(ops, constant(x), args.logit_rows, last);
  if (m.config.hyper.streams > 0) last = head_streams(ops, m, m.weights.head_hyper, constant(last));
  const MutableRowsView h = activations_of(ops, last);
  rms_norm(ops, constant(last), m.weights.final_norm, m.config.norm_eps, h);
  head(ops, m, constant(h), args, &search);
}

void logits_of_normed(const OpsContext& ops, const DecoderView& m, const MutableRowsView& h,
                      const ForwardArgs& args, NonFiniteSearch& search) {
  const Arena::Scope scope(*ops.tensors);
  const MutableRowsView last = alloc_activations(ops, std::ssize(args.logit_rows), h.cols);
  gather_rows(ops, constant(h), args.logit_rows, last);
  head(ops, m, constant(last), args, &search);
}

void head(const OpsContext& ops, const DecoderView& m, const RowsView& h, const ForwardArgs& args,
          NonFiniteSearch* search) {
  const auto finish = [&](const MutableRowsView& logits) {
    if (m.config.logit_cap > 0) cap_rows(ops, logits, m.config.logit_cap);
    if (search != nullptr) search->look(constant(logits), args.logit_rows, m.config.layers);
  };
  if (ops.communicator == nullptr) {
    matmul(ops, {h, m.weights.head, args.logits});
    return finish(args.logits);
  }
  const Arena::Scope scope(*ops.tensors);
  const MutableRowsView columns = alloc_rows(*ops.tensors, h.rows, m.weights.head.rows);
  if (columns.cols > 0) {
    matmul(ops, {h, m.weights.head, columns});
    finish(columns);
  }
  trade_columns(ops, {constant(columns), m.vocab_first, args.logits});
}

}  // namespace lathe
