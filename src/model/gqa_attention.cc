#include "model/gqa_attention.h"

#include <array>

#include "base/rows.h"
#include "ops/attend.h"
#include "ops/cache_write.h"
#include "ops/elementwise.h"
#include "ops/matmul.h"
#include "ops/queries.h"

namespace lathe {
namespace {

const float* data_or_null(Vector v) { return v.empty() ? nullptr : v.data(); }

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
  // A cache row: all heads' keys, then all heads' values.
  const MutableRowsView kv = alloc_rows(arena, h.rows, k_cols + v_cols);
  const MutableRowsView k = cols_at(kv, 0, k_cols);
  const std::array products = {
      Product{h, w.q, q, data_or_null(w.q_bias)},
      Product{h, w.k, k, data_or_null(w.k_bias)},
      Product{h, w.v, cols_at(kv, k_cols, v_cols), data_or_null(w.v_bias)},
  };
  matmul(ops, products);
  if (c.config.qk_norm) {
    rms_norm(ops, constant(k), w.k_norm, c.config.norm_eps, k, p.kv_heads);
  }

  const MutableRowsView out = alloc_activations(ops, h.rows, std::int64_t{p.heads} * p.v_head_dim);
  for (const Segment& segment : c.segments) {
    const StepView& step = *segment.step;
    if (step.rows == 0) continue;
    const Arena::Scope segment_scope(arena);
    const MutableRowsView q_rows = rows_at(q, segment.first_row, step.rows);
    const MutableRowsView k_rows = rows_at(k, segment.first_row, step.rows);
    const MutableRowsView kv_rows = rows_at(kv, segment.first_row, step.rows);
    Result<void> ok = rotate_rows(ops, c.rope.main, step.positions, k_rows, p.kv_heads, 0);
    if (ok) {
      ok = write_rows(ops, constant(kv_rows), step.out_slots, c.cache.main(c.layer),
                      c.cache.scales(c.layer), c.cache.tally(c.layer));
    }
    if (!ok) return ok;

    MutableRowsView q_in = q_rows;
    if (step.route->q_dtype != DType::f32) {
      q_in = alloc_rows(arena, step.rows, q.cols, step.route->q_dtype);
    }
    ok = prepare_queries(ops, {.x = q_rows,
                               .heads = p.heads,
                               .norms = c.config.qk_norm,
                               .norm = w.q_norm,
                               .eps = c.config.norm_eps,
                               .table = &c.rope.main,
                               .positions = step.positions,
                               .out = q_in});
    if (!ok) return ok;
    const AttendOp op{.plan = &c.plan,
                      .step = &step,
                      .pool = c.cache.main(c.layer),
                      .scales = c.cache.scales(c.layer),
                      .q = constant(q_in),
                      .sink = w.sink,
                      .gather_workspace = c.cache.gather_workspace(),
                      .out = rows_at(out, segment.first_row, step.rows)};
    if (ok = attend(ops, op); !ok) return ok;
  }
  matmul(ops, {constant(out), w.out, x, data_or_null(w.out_bias), add});
  return {};
}

}  // namespace lathe
