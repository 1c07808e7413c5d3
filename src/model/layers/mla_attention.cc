#include "model/layers/mla_attention.h"

#include <algorithm>
#include <array>
#include <span>

#include "base/rows.h"
#include "model/layers/indexer.h"
#include "ops/attend.h"
#include "ops/cache_write.h"
#include "ops/elementwise.h"
#include "ops/latent_rows.h"
#include "ops/matmul.h"

namespace lathe {
namespace {

class MlaLayer {
 public:
  MlaLayer(const LayerContext& c, const MlaWeights& w)
      : c_(c), ops_(c.ops), arena_(*c.ops.tensors), w_(w), p_(c.plan.problem) {}

  Result<void> run(const IndexerWeights* indexer, const RowsView& h, const MutableRowsView& x,
                   bool add) {
    const Arena::Scope scope(arena_);
    allocate(h.rows);
    if (auto ok = project(indexer, h); !ok) return ok;
    out_ = alloc_activations(ops_, h.rows, std::int64_t{p_.heads} * p_.v_head);
    for (std::size_t s = 0; s < c_.segments.size(); ++s) {
      if (c_.segments[s].step->rows == 0) continue;
      const bool expanded = c_.segments[s].step->route->kind == KernelKind::ragged;
      if (auto ok = expanded ? attend_expanded(s) : attend_absorbed(s); !ok) return ok;
    }
    gate_output(h);
    matmul(ops_, {constant(out_), w_.out, x, data_or_null(w_.out_bias), add});
    return {};
  }

 private:
  // Multiplies out_ by the sigmoids of the layer's gate, if it has one.
  void gate_output(const RowsView& h) {
    const Arena::Scope scope(arena_);
    std::int64_t head = q_head() + p_.v_head, width = p_.v_head;  // of q_and_gate_
    MutableRowsView gates;
    if (c_.config.output_gate == OutputGate::with_q_b) {
      gates = cols_at(q_and_gate_, q_head(), width);
    } else if (w_.gate.rows > 0) {
      const MutableRowsView all = alloc_rows(arena_, h.rows, w_.gate.rows);
      matmul(ops_, {h, w_.gate, all});
      head = width = w_.gate.rows / p_.heads;
      gates = cols_at(all, 0, width);
    } else {
      return;
    }
    gate_rows(ops_, {.x = out_, .gate = constant(gates), .heads = p_.heads, .gate_head = head});
  }
  std::int64_t q_head() const { return p_.qk_nope_head + p_.rope; }

  void allocate(std::int64_t rows) {
    q_ = alloc_rows(arena_, rows, p_.heads * q_head());
    k_ = alloc_rows(arena_, rows, p_.nope + p_.rope);
    const std::int64_t lora = c_.config.mla.q_lora;
    if (lora == 0) return;
    q_latent_ = alloc_rows(arena_, rows, lora);
    if (c_.config.output_gate == OutputGate::with_q_b) {
      q_and_gate_ = alloc_rows(arena_, rows, p_.heads * (q_head() + p_.v_head));
      both_ = alloc_activations(ops_, rows, 2 * lora);
      normed_ = cols_at(both_, 0, lora);
    } else {
      normed_ = activations_of(ops_, q_latent_);
    }
  }

  // Computes q_ [rows, heads * (qk_nope_head + rope)] and k_ [rows, nope + rope], not rotated, and
  // runs the indexer. Its keys share the launch of the first GEMMs; what only some steps need is
  // alone.
  Result<void> project(const IndexerWeights* indexer, const RowsView& h) {
    const Product kv{h, w_.kv_a, k_, data_or_null(w_.kv_a_bias)};
    if (c_.config.mla.q_lora == 0) {
      matmul(ops_, std::array{kv, Product{h, w_.q_b, q_}});
      return {};
    }
    const Product q{h, w_.q_a, q_latent_, data_or_null(w_.q_a_bias)};
    if (indexer == nullptr) {
      matmul(ops_, std::array{kv, q});
      project_q({});
      return {};
    }
    const Arena::Scope scope(arena_);
    const std::int64_t ranked = ranks_keys(c_) ? h.rows : 0;
    const IndexerInputs in{
        .k = alloc_rows(arena_, h.rows, p_.index_dim),
        .q = alloc_rows(arena_, ranked, std::int64_t{p_.index_heads} * p_.index_dim),
        .weights = alloc_rows(arena_, ranked, p_.index_heads)};
    const std::array products = {
        kv, q, Product{h, indexer->k, in.k},
        Product{.x = h, .w = indexer->weights, .out = in.weights, .alone = true}};
    matmul(ops_, std::span(products).first(ranked > 0 ? 4 : 3));
    const Product index_q{.x = constant(normed_), .w = indexer->q, .out = in.q, .alone = true};
    project_q({&index_q, ranked > 0 ? 1u : 0u});
    return run_indexer(c_, *indexer, h, in);
  }

  // index_q: the indexer's queries, of normed_, or nothing.
  void project_q(std::span<const Product> index_q) {
    rms_norm(ops_, constant(q_latent_), w_.q_a_norm, c_.config.mla.norm_eps, normed_);
    if (c_.config.output_gate == OutputGate::with_q_b) {
      project_q_and_gate();
      return matmul(ops_, index_q);
    }
    std::array products = {Product{constant(normed_), w_.q_b, q_}, Product{}};
    std::ranges::copy(index_q, products.begin() + 1);
    matmul(ops_, std::span(products).first(1 + index_q.size()));
  }

  // q_b reads the compressed query twice, and has q and the gate of each head.
  void project_q_and_gate() {
    const std::int64_t lora = q_latent_.cols;
    cast_rows(ops_, constant(q_latent_), cols_at(both_, lora, lora));
    matmul(ops_, {constant(both_), w_.q_b, q_and_gate_});
    cast_rows(ops_, {.x = constant(cols_at(q_and_gate_, 0, q_head())),
                     .out = cols_at(q_, 0, q_head()),
                     .heads = p_.heads,
                     .x_head = q_head() + p_.v_head,
                     .out_head = q_head()});
  }

  // Queries that grow with their position do so before RoPE, which leaves their length alone.
  Result<void> grow(const LatentRows& rows) const {
    if (!c_.rope.query) return {};
    return rotate_rows(ops_, *c_.rope.query, rows.positions, rows.q, p_.heads, 0);
  }

  LatentRows rows_of(const Segment& segment) const {
    const StepView& step = *segment.step;
    return {.q = rows_at(q_, segment.first_row, step.rows),
            .k = rows_at(k_, segment.first_row, step.rows),
            .heads = p_.heads,
            .qk_nope = p_.qk_nope_head,
            .norm = w_.kv_a_norm,
            .eps = c_.config.mla.norm_eps,
            .table = p_.rope > 0 ? &c_.rope.main : nullptr,
            .positions = step.positions,
            .slots = step.out_slots,
            .scales = c_.cache.scales(c_.layer),
            .tally = c_.cache.tally(c_.layer)};
  }

  AttendOp op_of(std::size_t s) const {
    return {.plan = &c_.plan,
            .step = c_.segments[s].step,
            .pool = c_.cache.main(c_.layer),
            .scales = c_.cache.scales(c_.layer),
            .sink = w_.sink,
            .gather_workspace = c_.cache.gather_workspace()};
  }

  // Projects q into the latent space (q_nope uk^T), so that heads share the cached row as key and
  // value; uv projects the resulting latent to a value per head.
  Result<void> attend_absorbed(std::size_t s) {
    const Segment& segment = c_.segments[s];
    const StepView& step = *segment.step;
    const Arena::Scope scope(arena_);
    LatentRows rows = rows_of(segment);
    if (auto ok = grow(rows); !ok) return ok;
    rows.absorbs = &w_.uk;
    rows.q_out = alloc_rows(arena_, step.rows, p_.heads * (p_.nope + p_.rope), step.route->q_dtype);
    if (auto ok = prepare_latent(ops_, rows, c_.cache.main(c_.layer)); !ok) return ok;

    const MutableRowsView latents =
        alloc_activations(ops_, step.rows, std::int64_t{p_.heads} * p_.nope);
    AttendOp op = op_of(s);
    op.q = constant(rows.q_out);
    const Selection& selection = c_.selections[s];
    op.slots = selection.view(step.rows);
    op.slots_width = selection.width;
    op.out = latents;
    if (auto ok = attend(ops_, op); !ok) return ok;

    const MutableRowsView out = rows_at(out_, segment.first_row, step.rows);
    head_matmul(ops_, {constant(latents), p_.nope, &w_.uv, out, p_.v_head});
    return {};
  }

  // The kernel expands keys and values itself; q keeps its per-head width.
  Result<void> attend_expanded(std::size_t s) {
    const Segment& segment = c_.segments[s];
    const StepView& step = *segment.step;
    const Arena::Scope scope(arena_);
    LatentRows rows = rows_of(segment);
    if (auto ok = grow(rows); !ok) return ok;
    rows.q_out = rows.q;
    if (step.route->q_dtype != DType::f32) {
      rows.q_out = alloc_rows(arena_, step.rows, rows.q.cols, step.route->q_dtype);
    }
    if (auto ok = prepare_latent(ops_, rows, c_.cache.main(c_.layer)); !ok) return ok;
    AttendOp op = op_of(s);
    op.q = constant(rows.q_out);
    op.expansion = w_.expansion();
    op.out = rows_at(out_, segment.first_row, step.rows);
    return attend(ops_, op);
  }

  const LayerContext& c_;
  const OpsContext& ops_;
  Arena& arena_;
  const MlaWeights& w_;
  const AttentionProblem& p_;
  MutableRowsView q_, k_, q_latent_, normed_, out_;  // normed_: of q_latent_, in activations
  // With OutputGate::with_q_b: [rows, heads * (q_head() + v_head)]; [rows, 2 q_lora], of which
  // normed_ is the first half.
  MutableRowsView q_and_gate_, both_;
};

}  // namespace

Result<void> mla_attention(const LayerContext& c, const MlaWeights& w,
                           const IndexerWeights* indexer, const RowsView& h,
                           const MutableRowsView& x, bool add) {
  return MlaLayer(c, w).run(indexer, h, x, add);
}

}  // namespace lathe
