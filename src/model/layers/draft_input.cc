#include "model/layers/draft_input.h"

#include "base/rows.h"
#include "model/layers/embedding.h"
#include "ops/cache_write.h"
#include "ops/elementwise.h"
#include "ops/matmul.h"

namespace lathe {
namespace {

// One stream.
void join_one(const OpsContext& ops, const DecoderView& m, const ForwardArgs& args,
              const MutableRowsView& x) {
  const Arena::Scope scope(*ops.tensors);
  const DraftWeights& w = m.weights.draft;
  const MutableRowsView both = alloc_activations(ops, x.rows, 2 * x.cols);
  const MutableRowsView before = alloc_activations(ops, x.rows, x.cols);
  gather_rows(ops, args.before, args.before_rows, before);
  embed_tokens(ops, m, args.tokens, x);
  rms_norm(ops, constant(x), w.embedding_norm, m.config.norm_eps, cols_at(both, 0, x.cols));
  rms_norm(ops, constant(before), w.hidden_norm, m.config.norm_eps, cols_at(both, x.cols, x.cols));
  matmul(ops, {constant(both), w.join, x});
}

void join_streams(const OpsContext& ops, const DecoderView& m, const ForwardArgs& args,
                  const MutableRowsView& x) {
  const Arena::Scope scope(*ops.tensors);
  const DraftWeights& w = m.weights.draft;
  const std::int64_t hidden = m.config.hidden;
  const MutableRowsView first = cols_at(x, 0, hidden);
  const MutableRowsView token = alloc_activations(ops, x.rows, hidden);
  embed_rows(ops, m, args.tokens, first);
  rms_norm(ops, constant(first), w.embedding_norm, m.config.norm_eps, token);
  matmul(ops, {constant(token), w.embedding_join, first});
  copy_stream(ops, m, x);
  const MutableRowsView normed = alloc_activations(ops, x.rows, x.cols);
  const MutableRowsView before = alloc_activations(ops, x.rows, x.cols);
  gather_rows(ops, args.before, args.before_rows, before);
  rms_norm(ops, constant(before), w.hidden_norm, m.config.norm_eps, normed, m.config.hyper.streams);
  for (std::int64_t at = 0; at < x.cols; at += hidden) {
    matmul(ops, {.x = constant(cols_at(normed, at, hidden)),
                 .w = w.stream_join,
                 .out = cols_at(x, at, hidden),
                 .add = true});
  }
}

}  // namespace

void join_draft(const OpsContext& ops, const DecoderView& m, const ForwardArgs& args,
                const MutableRowsView& x) {
  m.config.hyper.streams > 0 ? join_streams(ops, m, args, x) : join_one(ops, m, args, x);
}

}  // namespace lathe
