#include "model/layers/indexer.h"

#include <algorithm>

#include "base/rows.h"
#include "ops/compress.h"
#include "ops/elementwise.h"
#include "ops/indexer.h"
#include "ops/indexer_rows.h"
#include "ops/matmul.h"

namespace lathe {
namespace {

std::int64_t logits_budget(const Plan& plan) {
  const Budget* budget = plan.budget(BudgetKind::indexer_logits);
  return budget != nullptr ? budget->bytes : 0;
}

// Writes the index keys of tokens that share one. k: normed.
Result<void> write_shared_keys(const LayerContext& c, const IndexerWeights& w, const StepView& step,
                               const MutableRowsView& k, const MutableRowsView& gate) {
  const AttentionProblem& p = c.plan.problem;
  return compress(c.ops,
                  {.step = &step,
                   .kv = constant(k),
                   .gate = constant(gate),
                   .position_bias = w.compressor.position_bias,
                   .norm = {},
                   .table = &*c.rope.index,
                   .ratio = p.index_pool,
                   .dim = p.index_dim,
                   .state = c.cache.state_of(c.layer)},
                  c.cache.index(c.layer));
}

// The selection of a step's keys, without queries or the keys that other rows have selected.
SelectKeys select_of(const LayerContext& c, const StepView& step, const Selection& selection) {
  const AttentionProblem& p = c.plan.problem;
  const std::int32_t group = p.tokens_per_index_key();
  const PoolShape main = c.cache.chosen_shape(c.layer);
  const std::int64_t keys = step.max_context / group;
  return {.step = &step,
          .keys = c.cache.index(c.layer),
          .main = {main.page_size / group, main.pages},
          .heads = p.index_heads,
          .dim = p.index_dim,
          .most_keys = keys,
          .k = group == 1 ? selection.width : std::clamp<std::int64_t>(keys, 1, p.index_top_k()),
          .budget_bytes = logits_budget(c.plan),
          .tokens_per_key = group,
          .slots = {selection.slots, static_cast<std::size_t>(step.rows * selection.width)}};
}

}  // namespace

bool ranks_keys(const LayerContext& c) {
  if (!c.choice_rows.empty()) return false;
  for (std::size_t s = 0; s < c.segments.size(); ++s) {
    if (c.selections[s].width > 0 && c.segments[s].step->selecting_rows > 0) return true;
  }
  return false;
}

Result<void> run_indexer(const LayerContext& c, const IndexerWeights& w, const RowsView& h,
                         const IndexerInputs& in) {
  const OpsContext& ops = c.ops;
  Arena& arena = *ops.tensors;
  const Arena::Scope scope(arena);
  const AttentionProblem& p = c.plan.problem;

  const bool shared = !c.choice_rows.empty();
  const MutableRowsView gate = alloc_rows(arena, h.rows, p.index_pool > 0 ? p.index_dim : 0);
  const float eps = c.config.mla.index_norm_eps;
  if (p.index_pool > 0) {
    matmul(ops, {h, w.compressor.gate, gate});
    layer_norm(ops, constant(in.k), w.k_norm, w.k_norm_bias, eps, in.k);
  }

  for (std::size_t s = 0; s < c.segments.size(); ++s) {
    const Segment& segment = c.segments[s];
    const StepView& step = *segment.step;
    if (step.rows == 0) continue;
    Selection& selection = c.selections[s];
    const bool selects = selection.width > 0 && !selection.all;
    IndexerRows rows{.heads = p.index_heads,
                     .table = &*c.rope.index,
                     .place = c.config.mla.index_place,
                     .positions = step.positions,
                     .slots = step.out_slots};
    const MutableRowsView keys = rows_at(in.k, segment.first_row, step.rows);
    if (p.index_pool == 0) {
      rows.k = keys;
      rows.norm = w.k_norm;
      rows.norm_bias = w.k_norm_bias;
      rows.eps = eps;
    } else {
      const MutableRowsView gates = rows_at(gate, segment.first_row, step.rows);
      if (auto ok = write_shared_keys(c, w, step, keys, gates); !ok) return ok;
    }
    if (selects && !shared && step.selecting_rows > 0) {
      rows.q = rows_at(in.q, segment.first_row, step.rows);
    }
    const auto codes = prepare_index(ops, rows, c.cache.index(c.layer));
    if (!codes) return codes.error();
    if (!selects) continue;

    SelectKeys select = select_of(c, step, selection);
    if (shared) {
      select.choices = c.choices;
      select.choice_rows = c.choice_rows.subspan(static_cast<std::size_t>(segment.first_row),
                                                 static_cast<std::size_t>(step.rows));
      select.choice_width = p.top_k;
    } else if (step.selecting_rows > 0) {
      select.q = constant(rows.q);
      select.codes = *codes;
      select.weights = constant(rows_at(in.weights, segment.first_row, step.rows));
    }
    if (auto ok = select_keys(ops, select); !ok) return ok;
    selection.all = !shared && step.selecting_rows == 0;
  }
  return {};
}

}  // namespace lathe
