#include "model/layers/compressed_attention.h"

#include <array>

#include "base/rows.h"
#include "ops/attend.h"
#include "ops/cache_write.h"
#include "ops/compress.h"
#include "ops/elementwise.h"
#include "ops/indexer.h"
#include "ops/indexer_rows.h"
#include "ops/latent_rows.h"
#include "ops/matmul.h"

namespace lathe {
namespace {

// A compressor's projections of all rows, [rows, halves * dim] each.
struct Compressed {
  MutableRowsView kv, gate;
};

class CompressedLayer {
 public:
  CompressedLayer(const LayerContext& c, const CompressedWeights& w, const IndexerWeights& index)
      : c_(c), ops_(c.ops), arena_(*c.ops.tensors), w_(w), index_(index), p_(c.plan.problem) {}

  Result<void> run(const RowsView& h, const MutableRowsView& y) {
    const Arena::Scope scope(arena_);
    project(h);
    out_ = alloc_activations(ops_, h.rows, std::int64_t{p_.heads} * p_.qk_dim());
    for (std::size_t s = 0; s < c_.segments.size(); ++s) {
      if (c_.segments[s].step->rows == 0) continue;
      const Arena::Scope of_segment(arena_);
      const MutableRowsView q = queries(s);
      Result<void> ok = write(s, q);
      if (ok && p_.sparse()) ok = select(s);
      if (ok) ok = attend_segment(s, constant(q));
      if (!ok) return ok;
    }
    const MutableRowsView grouped =
        alloc_activations(ops_, h.rows, w_.out_a.count() * c_.config.mla.o_lora);
    head_matmul(ops_, {constant(out_), w_.out_a.cols, &w_.out_a, grouped, c_.config.mla.o_lora});
    matmul(ops_, {constant(grouped), w_.out_b, y});
    return {};
  }

 private:
  // Computes q_ [rows, heads * key] and k_ [rows, key], neither normed nor rotated; and the
  // projections of the compressors and the indexer.
  void project(const RowsView& h) {
    k_ = alloc_rows(arena_, h.rows, p_.qk_dim());
    const MutableRowsView latent = alloc_rows(arena_, h.rows, c_.config.mla.q_lora);
    std::array<Product, 7> products = {Product{h, w_.kv, k_}, Product{h, w_.q_a, latent}};
    std::size_t n = 2;
    const auto add = [&](const WeightView& w) {
      const MutableRowsView to = alloc_rows(arena_, h.rows, w.rows);
      products[n++] = {h, w, to};
      return to;
    };
    if (p_.two_sources()) main_ = {add(w_.compressor.kv), add(w_.compressor.gate)};
    if (p_.sparse()) {
      keys_ = {add(index_.compressor.kv), add(index_.compressor.gate)};
    }
    const bool ranked = ranks();
    if (ranked) {
      index_weights_ = add(index_.weights);
      products[n - 1].alone = true;
    }
    matmul(ops_, std::span(products).first(n));
    const float eps = c_.config.norm_eps;
    const MutableRowsView normed = activations_of(ops_, latent);
    rms_norm(ops_, constant(latent), w_.q_a_norm, eps, normed);
    q_ = alloc_rows(arena_, h.rows, std::int64_t{p_.heads} * p_.qk_dim());
    const std::int64_t index_rows = ranked ? h.rows : 0;
    index_q_ = alloc_rows(arena_, index_rows, std::int64_t{p_.index_heads} * p_.index_dim);
    const std::array of_q = {
        Product{constant(normed), w_.q_b, q_},
        Product{.x = constant(normed), .w = index_.q, .out = index_q_, .alone = true}};
    matmul(ops_, std::span(of_q).first(ranked ? 2 : 1));
  }

  // Index queries matter only if a row has more entries than it may keep.
  bool ranks() const {
    for (const Segment& s : c_.segments) {
      if (p_.sparse() && s.step->selecting_rows > 0) return true;
    }
    return false;
  }

  MutableRowsView mine(const MutableRowsView& rows, std::size_t s) const {
    return rows_at(rows, c_.segments[s].first_row, c_.segments[s].step->rows);
  }

  // Rows for a segment's queries as its route reads them: q_'s own if that is f32.
  MutableRowsView queries(std::size_t s) {
    const StepView& step = *c_.segments[s].step;
    const DType dtype = step.route->q_dtype;
    return dtype == DType::f32 ? mine(q_, s) : alloc_rows(arena_, step.rows, q_.cols, dtype);
  }

  // Makes the queries, and writes window keys, entries and index keys to their pools. A row attends
  // to the entry that it completes, so entries are written before attention.
  Result<void> write(std::size_t s, const MutableRowsView& q) {
    const StepView& step = *c_.segments[s].step;
    Result<void> ok = prepare_latent(ops_,
                                     {.q = mine(q_, s),
                                      .k = mine(k_, s),
                                      .heads = p_.heads,
                                      .qk_nope = p_.nope,
                                      .norm = w_.kv_norm,
                                      .norms_queries = true,
                                      .eps = c_.config.norm_eps,
                                      .table = &c_.rope.main,
                                      .positions = step.positions,
                                      .slots = step.out_slots,
                                      .q_out = q},
                                     c_.cache.main(c_.layer));
    if (!ok || !p_.two_sources()) return ok;
    const StateView state = c_.cache.state_of(c_.layer);
    ok = compress_rows(s, main_, w_.compressor, p_.qk_dim(), state, c_.cache.compressed(c_.layer),
                       false);
    if (!ok || !p_.sparse()) return ok;
    const std::int64_t main_bytes = 4 * fold_floats(compressor_halves(p_), p_.qk_dim());
    return compress_rows(s, keys_, index_.compressor, p_.index_dim, state.from(main_bytes),
                         c_.cache.index(c_.layer), true);
  }

  Result<void> compress_rows(std::size_t s, const Compressed& rows, const CompressorWeights& w,
                             std::int32_t dim, const StateView& state, const PoolView& pool,
                             bool index) {
    return compress(ops_,
                    {.step = c_.segments[s].step,
                     .kv = constant(mine(rows.kv, s)),
                     .gate = constant(mine(rows.gate, s)),
                     .position_bias = w.position_bias,
                     .norm = w.norm,
                     .norm_eps = c_.config.norm_eps,
                     .table = &c_.rope.main,
                     .ratio = p_.compress_ratio,
                     .halves = compressor_halves(p_),
                     .dim = dim,
                     .hadamard = index,
                     .state = state},
                    pool);
  }

  Result<void> select(std::size_t s) {
    const StepView& step = *c_.segments[s].step;
    Selection& selection = c_.selections[s];
    if (selection.all) return {};
    const Arena::Scope scope(arena_);
    const Budget* budget = c_.plan.budget(BudgetKind::indexer_logits);
    SelectKeys op{
        .step = &step,
        .keys = c_.cache.index(c_.layer),
        .main = c_.cache.chosen_shape(c_.layer),
        .heads = p_.index_heads,
        .dim = p_.index_dim,
        .hadamard = true,
        .most_keys = step.max_context / p_.compress_ratio,
        .k = selection.width,
        .budget_bytes = budget != nullptr ? budget->bytes : 0,
        .slots = {selection.slots, static_cast<std::size_t>(step.rows * selection.width)}};
    if (step.selecting_rows > 0) {
      const MutableRowsView q = mine(index_q_, s);
      const auto codes = prepare_index(ops_,
                                       {.q = q,
                                        .heads = p_.index_heads,
                                        .hadamard = op.hadamard,
                                        .table = &c_.rope.main,
                                        .positions = step.positions},
                                       c_.cache.index(c_.layer));
      if (!codes) return codes.error();
      op.q = constant(q);
      op.codes = *codes;
      op.weights = constant(mine(index_weights_, s));
    }
    const Result<void> ok = select_keys(ops_, op);
    selection.all = step.selecting_rows == 0;
    return ok;
  }

  Result<void> attend_segment(std::size_t s, const RowsView& q) {
    const StepView& step = *c_.segments[s].step;
    const MutableRowsView out = mine(out_, s);
    AttendOp op{.plan = &c_.plan,
                .step = &step,
                .pool = c_.cache.main(c_.layer),
                .q = q,
                .sink = w_.sink,
                .gather_workspace = c_.cache.gather_workspace(),
                .out = out};
    if (p_.two_sources()) op.compressed = c_.cache.compressed(c_.layer);
    if (p_.sparse()) {
      op.slots = c_.selections[s].view(step.rows);
      op.slots_width = c_.selections[s].width;
    }
    if (auto ok = attend(ops_, op); !ok) return ok;
    // Values are rotated keys, so rotate the output back by the row's position.
    return unrotate_rows(ops_, c_.rope.main, step.positions, out, p_.heads, p_.nope);
  }

  const LayerContext& c_;
  const OpsContext& ops_;
  Arena& arena_;
  const CompressedWeights& w_;
  const IndexerWeights& index_;
  const AttentionProblem& p_;
  MutableRowsView q_, k_, out_, index_q_, index_weights_;
  Compressed main_, keys_;
};

}  // namespace

Result<void> compressed_attention(const LayerContext& c, const CompressedWeights& w,
                                  const IndexerWeights& index, const RowsView& h,
                                  const MutableRowsView& y) {
  return CompressedLayer(c, w, index).run(h, y);
}

}  // namespace lathe
