#include "model/layers/embedding.h"

#include "base/float_formats.h"
#include "base/rows.h"
#include "ops/cache_write.h"
#include "ops/elementwise.h"
#include "ops/exchange.h"

namespace lathe {
namespace {

// As in transformers, the factor is rounded to the embeddings' dtype.
float embedding_scale(const DecoderView& m) {
  const float scale = m.config.embedding_scale;
  if (!m.config.rounded_embedding_scale) return scale;
  switch (m.weights.embedding.dtype) {
    case DType::bf16:
      return to_f32(to_bf16(scale));
    case DType::f16:
      return to_f32(to_f16(scale));
    default:
      return scale;
  }
}

}  // namespace

void embed_tokens(const OpsContext& ops, const DecoderView& m, std::span<const std::int32_t> tokens,
                  const MutableRowsView& x) {
  const MutableRowsView first = cols_at(x, 0, m.config.hidden);
  embed_rows(ops, m, tokens, first);
  copy_stream(ops, m, x);
}

// Only one rank has a token's row, so the sum is exact if partials are f32.
void embed_rows(const OpsContext& ops, const DecoderView& m, std::span<const std::int32_t> tokens,
                const MutableRowsView& x) {
  const WeightView& table = m.weights.embedding;
  if (ops.communicator == nullptr) return embed(ops, table, tokens, x, embedding_scale(m));
  const Arena::Scope scope(*ops.tensors);
  const MutableRowsView partial = alloc_partial(ops, x.rows, x.cols, DType::f32);
  embed(ops, {.table = table,
              .tokens = tokens,
              .out = partial,
              .scale = embedding_scale(m),
              .first = m.weights.share.vocab.first,
              .vocab = m.config.vocab});
  sum_rows(ops, {.partial = constant(partial), .out = x, .exact = true});
}

void copy_stream(const OpsContext& ops, const DecoderView& m, const MutableRowsView& x) {
  const std::int64_t others = m.config.hyper.streams - 1;
  if (others < 1) return;
  cast_rows(ops, {.x = constant(cols_at(x, 0, m.config.hidden)),
                  .out = cols_at(x, m.config.hidden, m.config.hidden),
                  .heads = others,
                  .x_head = 0,
                  .out_head = m.config.hidden});
}

}  // namespace lathe
