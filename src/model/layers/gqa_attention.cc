#include "model/layers/gqa_attention.h"

#include <array>

#include "base/rows.h"
#include "ops/attend.h"
#include "ops/cache_write.h"
#include "ops/elementwise.h"
#include "ops/matmul.h"
#include "ops/qkv.h"

namespace lathe {

namespace {

// out = x's columns from `first` on, unless x is out itself.
void copy_heads(const OpsContext& ops, const MutableRowsView& x, std::int64_t first,
                const MutableRowsView& out) {
  if (x.data != out.data) cast_rows(ops, constant(cols_at(x, first, out.cols)), out);
}

// v = x, normed and scaled where the model does so; x may be v.
void prepare_v(const LayerContext& c, const MutableRowsView& x, const MutableRowsView& v) {
  if (c.config.value_norm) {
    rms_norm(c.ops, constant(x), {}, c.config.norm_eps, v, c.plan.problem.kv_heads);
  } else if (x.data != v.data) {
    cast_rows(c.ops, constant(x), v);
  }
  if (c.config.value_scale != 1) scale_rows(c.ops, v, c.config.value_scale);
}

}  // namespace

Result<void> gqa_attention(const LayerContext& c, const GqaWeights& w, const RowsView& h,
                           const MutableRowsView& x, bool add) {
  const OpsContext& ops = c.ops;
  Arena& arena = *ops.tensors;
  const Arena::Scope scope(arena);
  const AttentionProblem& p = c.plan.problem;
  const std::int64_t k_cols = std::int64_t{p.kv_heads} * p.head_dim;
  const std::int64_t v_cols = std::int64_t{p.kv_heads} * p.v_head_dim;

  const MutableRowsView q = alloc_rows(arena, h.rows, std::int64_t{p.heads} * p.head_dim);
  const bool reads = w.k.rows == 0;  // another layer's keys
  const std::int32_t source =
      reads ? c.config.groups[c.config.group_of(c.layer)].layers.back() : c.layer;
  // A cache row: all heads' keys, then all heads' values. A layer that reads another's has none.
  const MutableRowsView kv = alloc_rows(arena, h.rows, reads ? 0 : k_cols + v_cols);
  // With norms over all heads q and k have the heads of all ranks; with a gate in q_proj all_q has
  // each head's q, then its gate.
  const bool gated = c.config.output_gate == OutputGate::with_q;
  const bool unit_norm = c.config.groups[c.config.group_of(c.layer)].unit_qk_norm;
  const MutableRowsView all_q = w.q.rows == q.cols ? q : alloc_rows(arena, h.rows, w.q.rows);
  const MutableRowsView k = reads ? kv : cols_at(kv, 0, k_cols);
  const MutableRowsView all_k =
      reads || w.k.rows == k_cols ? k : alloc_rows(arena, h.rows, w.k.rows);
  const MutableRowsView v = reads ? kv : cols_at(kv, k_cols, v_cols);
  const bool v_is_k = w.v.cols == 0;
  const std::array products = {
      Product{h, w.q, all_q, data_or_null(w.q_bias)},
      Product{h, w.k, all_k, data_or_null(w.k_bias)},
      Product{h, w.v, v, data_or_null(w.v_bias)},
  };
  matmul(ops, std::span(products).first(reads ? 1 : v_is_k ? 2 : 3));
  if (!reads) prepare_v(c, v_is_k ? k : v, v);
  if (c.config.qk_norm == QkNorm::whole) {
    rms_norm(ops, constant(all_q), w.q_norm, c.config.norm_eps, all_q);
    rms_norm(ops, constant(all_k), w.k_norm, c.config.norm_eps, all_k);
    copy_heads(ops, all_q, w.q_first, q);
    copy_heads(ops, all_k, w.k_first, k);
  }
  if (gated) {
    cast_rows(ops, {.x = constant(cols_at(all_q, 0, p.head_dim)),
                    .out = cols_at(q, 0, p.head_dim),
                    .heads = p.heads,
                    .x_head = std::int64_t{2} * p.head_dim,
                    .out_head = p.head_dim});
  }

  const MutableRowsView out = alloc_activations(ops, h.rows, std::int64_t{p.heads} * p.v_head_dim);
  for (const Segment& segment : c.segments) {
    const StepView& step = *segment.step;
    if (step.rows == 0) continue;
    const Arena::Scope segment_scope(arena);
    const MutableRowsView q_rows = rows_at(q, segment.first_row, step.rows);
    MutableRowsView q_in = q_rows;
    if (step.route->q_dtype != DType::f32) {
      q_in = alloc_rows(arena, step.rows, q.cols, step.route->q_dtype);
    }
    const QkvRows qkv{.q = q_rows,
                      .kv = rows_at(kv, segment.first_row, step.rows),
                      .heads = p.heads,
                      .kv_heads = p.kv_heads,
                      .norms = c.config.qk_norm == QkNorm::heads || unit_norm,
                      .q_norm = w.q_norm,
                      .k_norm = w.k_norm,
                      .eps = c.config.norm_eps,
                      .table = &c.rope.main,
                      .q_table = c.rope.query ? &*c.rope.query : nullptr,
                      .positions = step.positions,
                      .q_out = q_in,
                      .slots = step.out_slots,
                      .scales = c.cache.scales(c.layer),
                      .tally = c.cache.tally(c.layer)};
    if (auto ok = prepare_qkv(ops, qkv, c.cache.main(source)); !ok) return ok;
    const AttendOp op{.plan = &c.plan,
                      .step = &step,
                      .pool = c.cache.main(source),
                      .scales = c.cache.scales(source),
                      .q = constant(q_in),
                      .sink = w.sink,
                      .gather_workspace = c.cache.gather_workspace(),
                      .out = rows_at(out, segment.first_row, step.rows)};
    if (auto ok = attend(ops, op); !ok) return ok;
  }
  if (gated) {
    gate_rows(ops, {.x = out,
                    .gate = constant(cols_at(all_q, p.head_dim, p.v_head_dim)),
                    .heads = p.heads,
                    .gate_head = std::int64_t{2} * p.head_dim});
  }
  matmul(ops, {constant(out), w.out, x, data_or_null(w.out_bias), add});
  return {};
}

}  // namespace lathe
