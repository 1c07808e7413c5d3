#include "model/layers/delta_layer.h"

#include <array>

#include "base/rows.h"
#include "ops/cache_write.h"
#include "ops/delta_rule.h"
#include "ops/elementwise.h"
#include "ops/matmul.h"

namespace lathe {
namespace {

// The operator's inputs of all rows, as in kernels/delta_rule.h.
struct Inputs {
  MutableRowsView x, gate, beta, decay;
};

// Copies `width` columns of each head of `from`, from column `first` of the head on, to the heads
// of `to`, which has no others.
void copy_columns(const OpsContext& ops, const MutableRowsView& from, std::int64_t heads,
                  std::int64_t first, std::int64_t width, const MutableRowsView& to) {
  cast_rows(ops, {.x = constant(cols_at(from, first, width)),
                  .out = cols_at(to, 0, width),
                  .heads = heads,
                  .x_head = from.cols / heads,
                  .out_head = width});
}

// Projections of which each key head has its own columns (Qwen 3 Next).
void project_by_key_heads(const OpsContext& ops, const DeltaRuleProblem& p, const DeltaWeights& w,
                          const RowsView& h, const Inputs& in) {
  const Arena::Scope scope(*ops.tensors);
  const MutableRowsView qkvz = alloc_rows(*ops.tensors, h.rows, w.qkvz.rows);
  const MutableRowsView ba = alloc_rows(*ops.tensors, h.rows, w.ba.rows);
  matmul(ops, std::array{Product{h, w.qkvz, qkvz}, Product{h, w.ba, ba}});
  const std::int64_t heads = p.key_heads, each = p.heads / p.key_heads;
  const std::int64_t values = each * p.dv, keys = p.key_cols();
  copy_columns(ops, qkvz, heads, 0, p.dk, cols_at(in.x, 0, keys));
  copy_columns(ops, qkvz, heads, p.dk, p.dk, cols_at(in.x, keys, keys));
  copy_columns(ops, qkvz, heads, 2 * p.dk, values, cols_at(in.x, 2 * keys, p.value_cols()));
  copy_columns(ops, qkvz, heads, 2 * p.dk + values, values, in.gate);
  copy_columns(ops, ba, heads, 0, each, in.beta);
  copy_columns(ops, ba, heads, each, each, in.decay);
}

// Projections of which two have a low rank (Kimi-Linear).
void project_low_rank(const OpsContext& ops, const DeltaRuleProblem& p, const DeltaWeights& w,
                      const RowsView& h, const Inputs& in) {
  const Arena::Scope scope(*ops.tensors);
  const MutableRowsView decay = alloc_activations(ops, h.rows, w.decay_down.rows);
  const MutableRowsView gate = alloc_activations(ops, h.rows, w.gate_down.rows);
  const std::int64_t keys = p.key_cols();
  matmul(ops, std::array{Product{h, w.q, cols_at(in.x, 0, keys)},
                         Product{h, w.k, cols_at(in.x, keys, keys)},
                         Product{h, w.v, cols_at(in.x, 2 * keys, p.value_cols())},
                         Product{h, w.beta, in.beta}, Product{h, w.decay_down, decay},
                         Product{h, w.gate_down, gate}});
  matmul(ops, {constant(decay), w.decay, in.decay});
  matmul(ops, {constant(gate), w.gate, in.gate});
}

void project(const OpsContext& ops, const DeltaRuleProblem& p, const DeltaWeights& w,
             const RowsView& h, const Inputs& in) {
  if (w.qkvz.rows > 0) return project_by_key_heads(ops, p, w, h, in);
  if (w.decay_down.rows > 0) return project_low_rank(ops, p, w, h, in);
  const std::int64_t keys = p.key_cols();
  matmul(ops, std::array{Product{h, w.q, cols_at(in.x, 0, keys)},
                         Product{h, w.k, cols_at(in.x, keys, keys)},
                         Product{h, w.v, cols_at(in.x, 2 * keys, p.value_cols())},
                         Product{h, w.gate, in.gate}, Product{h, w.beta, in.beta},
                         Product{h, w.decay, in.decay}});
}

}  // namespace

Result<void> delta_layer(const LayerContext& c, const DeltaWeights& w, const RowsView& h,
                         const MutableRowsView& x, bool add) {
  const OpsContext& ops = c.ops;
  Arena& arena = *ops.tensors;
  const Arena::Scope scope(arena);
  const DeltaRuleProblem& p = c.config.delta.problem;
  const Inputs in{alloc_rows(arena, h.rows, p.channels()),
                  alloc_rows(arena, h.rows, p.value_cols()), alloc_rows(arena, h.rows, p.heads),
                  alloc_rows(arena, h.rows, p.gate_cols())};
  project(ops, p, w, h, in);
  const MutableRowsView out = alloc_activations(ops, h.rows, p.value_cols());
  for (const Segment& segment : c.segments) {
    const StepView& step = *segment.step;
    if (step.rows == 0) continue;
    const auto mine = [&](const MutableRowsView& rows) {
      return rows_at(rows, segment.first_row, step.rows);
    };
    const auto ok = delta_rule(ops, {.step = &step,
                                     .problem = p,
                                     .x = constant(mine(in.x)),
                                     .decay = constant(mine(in.decay)),
                                     .beta = constant(mine(in.beta)),
                                     .gate = constant(mine(in.gate)),
                                     .conv = w.conv,
                                     .a_log = w.a_log,
                                     .dt_bias = w.dt_bias,
                                     .norm = w.norm,
                                     .norm_eps = c.config.norm_eps,
                                     .out = mine(out),
                                     .state = c.cache.state_of(c.layer)});
    if (!ok) return ok;
  }
  matmul(ops, {constant(out), w.out, x, nullptr, add});
  return {};
}

}  // namespace lathe
