#include "model/memory/activations.h"

#include <fmt/format.h>

#include <algorithm>

#include "attn/compressor.h"
#include "attn/draft_rows.h"
#include "base/dtype.h"
#include "kernels/delta_rule.h"
#include "kernels/limits.h"
#include "plan/budget.h"
#include "plan/explain.h"
#include "step/step.h"

namespace lathe {
namespace {

// A worker's packing buffers for GEMMs: fixed-size blocks of rows and outputs.
constexpr std::int64_t kPackedBytes = std::int64_t{1} << 20;

// Saturates: sizes are rejected long before they overflow.
std::int64_t times(std::int64_t a, std::int64_t b) {
  std::int64_t product = 0;
  return __builtin_mul_overflow(a, b, &product) ? INT64_MAX : product;
}
std::int64_t plus(std::int64_t a, std::int64_t b) {
  std::int64_t sum = 0;
  return __builtin_add_overflow(a, b, &sum) ? INT64_MAX : sum;
}

bool latent(const Plan& plan) {
  return plan.problem.kind == ProblemKind::dense_latent ||
         plan.problem.kind == ProblemKind::sparse_latent;
}

// Bytes of one row, rounded up to 64 as in alloc_rows().
std::int64_t row(std::int64_t cols, DType dtype = DType::f32) {
  return (bytes_of(dtype, cols) + 63) / 64 * 64;
}

// Bytes of a row of q in the widest type that a route of the kind reads; 0 without such a route.
std::int64_t q_row(const Plan& plan, std::int64_t cols, bool expanded) {
  std::int64_t most = 0;
  for (const PhasePlan& phase : plan.phases) {
    for (const Route& r : phase.routes) {
      if ((r.kind == KernelKind::ragged) != expanded) continue;
      const bool as_it_is = r.q_dtype == DType::f32 && (expanded || !latent(plan));
      most = std::max(most, as_it_is ? 0 : row(cols, r.q_dtype));
    }
  }
  return most;
}

bool absorbs(const Plan& plan) {
  if (!latent(plan)) return false;
  for (const PhasePlan& phase : plan.phases) {
    for (const Route& r : phase.routes) {
      if (r.kind != KernelKind::ragged) return true;
    }
  }
  return false;
}

// Bytes per row of attention: for all rows of a step, and for rows of one tile of the absorbed
// part.
struct AttentionRow {
  std::int64_t kept = 0;
  std::int64_t tiled = 0;
};

// Bytes of a bf16 copy of f32 activations, if GEMMs read bf16.
std::int64_t copy(const Plan& plan, std::int64_t cols) {
  return is_gpu(plan.device) ? row(cols, DType::bf16) : 0;
}

// Not tiled: heads are as wide as keys throughout.
std::int64_t compressed_row(const ModelConfig& config, const Share& share, const Plan& plan) {
  const AttentionProblem& p = plan.problem;
  const std::int64_t q = std::int64_t{p.heads} * p.qk_dim();
  std::int64_t out = 2 * row(q) + q_row(plan, q, false) + row(p.qk_dim()) + row(config.mla.q_lora) +
                     row(share.o_groups.count * config.mla.o_lora);
  out += copy(plan, config.mla.q_lora);
  if (!p.two_sources()) return out;
  out += 2 * row(std::int64_t{compressor_halves(p)} * p.qk_dim());
  const std::int64_t index_q = std::int64_t{p.index_heads} * p.index_dim;
  if (is_gpu(plan.device)) {
    // Rotated index queries, or the list of all entries of a context, padded for recorded steps.
    out += row(p.sparse() ? index_q : padded_context(plan.context_length) / p.compress_ratio);
  }
  if (!p.sparse()) return out;
  return out + 2 * row(std::int64_t{compressor_halves(p)} * p.index_dim) + row(index_q) +
         row(p.index_heads) + bytes_of(DType::e4m3, index_q) + 12 * std::int64_t{p.index_heads} +
         64;
}

AttentionRow attention_row(const ModelConfig& config, const Share& share, const Plan& plan) {
  const AttentionProblem& p = plan.problem;
  AttentionRow out;
  if (p.kind == ProblemKind::window_compressed) {
    return {compressed_row(config, share, plan), 0};
  }
  if (!latent(plan)) {
    const std::int64_t q = std::int64_t{p.heads} * p.head_dim;
    // With a gate q_proj's rows, too.
    const std::int64_t gates = config.output_gate == OutputGate::with_q ? row(2 * q) : 0;
    out.kept = gates + row(q) + row(std::int64_t{p.kv_heads} * (p.head_dim + p.v_head_dim)) +
               row(std::int64_t{p.heads} * p.v_head_dim) + q_row(plan, q, false);
    if (config.qk_norm == QkNorm::whole && share.ranks > 1) {  // q and k of all heads
      out.kept += row(q * share.ranks) + row(std::int64_t{p.kv_heads} * p.head_dim * share.ranks);
    }
    return out;
  }
  const std::int64_t q = std::int64_t{p.heads} * (p.qk_nope_head + p.rope);
  out.kept = row(q) + row(p.nope + p.rope) + row(config.mla.q_lora) + copy(plan, config.mla.q_lora);
  if (p.index_pool > 0) out.kept += row(p.index_dim);  // gates of index keys
  // The indexer releases its rows before attention allocates its own.
  const std::int64_t index_q = std::int64_t{p.index_heads} * p.index_dim;
  const std::int64_t quantized =
      bytes_of(DType::e4m3, index_q) + 12 * std::int64_t{p.index_heads} + 64;
  const std::int64_t indexer =
      p.sparse() ? row(p.index_dim) + row(index_q) + row(p.index_heads) + quantized : 0;
  const std::int64_t values = std::int64_t{p.heads} * p.v_head;
  const std::int64_t gates = config.output_gate == OutputGate::heads      ? row(p.heads)
                             : config.output_gate == OutputGate::elements ? row(values)
                                                                          : 0;
  if (config.output_gate == OutputGate::with_q_b) {  // q and gates, and what they are read from
    out.kept += row(q + values) + row(2 * config.mla.q_lora);
  }
  const std::int64_t attend = row(values) + q_row(plan, q, true) + gates;
  out.kept += std::max(indexer, attend);
  if (absorbs(plan)) {
    const std::int64_t absorbed = std::int64_t{p.heads} * (p.nope + p.rope);
    out.tiled = row(absorbed) + copy(plan, std::int64_t{p.heads} * p.qk_nope_head) +
                q_row(plan, absorbed, false) + row(std::int64_t{p.heads} * p.nope);
  }
  return out;
}

// Columns of the widest row that weights of attention read.
std::int64_t widest_row(const ModelConfig& config, const Share& share, const AttentionProblem& p) {
  const std::int64_t out = std::max(std::int64_t{p.heads} * std::max(p.v_head, p.v_head_dim),
                                    share.o_groups.count * config.mla.o_lora);
  return std::max({std::int64_t{config.hidden}, out,
                   rank_problem(config.delta.problem, share.ranks).value_cols()});
}

// Bytes of a row of e4m3 codes and scales: the widest that fp8 weights of attention read on a GPU.
std::int64_t codes_row(const ModelConfig& config, const Share& share, const AttentionProblem& p) {
  const std::int64_t cols = widest_row(config, share, p);
  return cols + cols / 32 + 64;
}

// Bytes of a step of delta-rule layers.
std::int64_t delta_rows(const ModelConfig& config, const ModelPlan& plan, const Share& share,
                        std::int64_t rows) {
  const auto& delta = plan.groups.front().group.delta;
  if (!delta) return 0;
  const DeltaRuleProblem& p = delta->problem;
  const bool gpu = is_gpu(plan.groups.front().plan.device);
  std::int64_t each =
      row(p.channels()) + 2 * row(p.value_cols()) + row(p.heads) + row(p.gate_cols());
  if (config.delta.tensors == DeltaTensors::key_heads) {
    each += row(2 * (p.key_cols() + p.value_cols())) + row(2 * p.heads);
  }
  if (config.delta.tensors == DeltaTensors::kimi ||
      config.delta.tensors == DeltaTensors::low_rank) {
    each += row(p.dk) + row(p.dv) + (gpu ? row(p.dk, DType::bf16) + row(p.dv, DType::bf16) : 0);
  }
  if (gpu && config.has_fp8()) each += codes_row(config, share, plan.groups.front().plan.problem);
  // The CPU's kernels use no tensors of their own.
  return plus(times(rows, each), gpu ? delta_scratch_bytes(p, rows, plan.max_requests()) : 0);
}

// Bytes of `rows` rows in the feed-forward part of the layer that needs most.
std::int64_t feed_forward(const ModelConfig& config, const Share& share, const Plan& plan,
                          std::int64_t rows) {
  const std::int64_t width = share.ffn.count * config.reader_ffn;
  const std::int64_t dense = 2 * row(width) + copy(plan, width);
  const MoeConfig& m = config.moe;
  if (is_gpu(plan.device)) {  // experts have their own budget
    return times(rows,
                 std::max(dense, 2 * row(share.shared.count) + copy(plan, share.shared.count) +
                                     (m.shared_gate ? 64 : 0)));
  }
  if (m.experts == 0) return times(rows, dense);
  const std::int64_t pass = std::min(kCpuExpertInputs, times(rows, m.top_k));
  const std::int64_t router =
      row(m.experts) + std::max(row(3 * m.experts + m.groups + 16), 64 + 2 * row(m.top_k));
  const std::int64_t experts = plus(
      times(rows, router), times(pass, row(config.hidden) + 2 * row(share.expert_width.count)));
  const std::int64_t shared = times(rows, 2 * row(share.shared.count) + (m.shared_gate ? 64 : 0));
  return std::max({times(rows, dense), experts, shared});
}

// Bytes of copies of x with columns in the order of int4 weights: for q, k and v, or for gate and
// up of an expert pass's rows.
std::int64_t ordered_rows(const ModelConfig& config, const Plan& plan, std::int64_t rows) {
  const AttentionProblem& p = plan.problem;
  const std::int64_t widest = std::max({std::int64_t{config.hidden}, std::int64_t{config.ffn},
                                        std::int64_t{p.heads} * std::max(p.v_head, p.v_head_dim)});
  const MoeConfig& m = config.moe;
  const std::int64_t pass =
      m.experts == 0 ? 0 : times(std::min(kCpuExpertInputs, times(rows, m.top_k)), 2);
  return std::max(times(rows, 3 * row(widest)), times(pass, row(std::max(config.hidden, m.ffn))));
}

// Partial sums per row of the narrow GEMM that computes how streams mix.
std::int64_t narrow_sums(const ModelConfig& config) {
  const std::int64_t s = config.hyper.streams;
  const std::int64_t slices = (s * config.hidden + cuda::kNarrowSlice - 1) / cuda::kNarrowSlice;
  return row(slices * (2 * s + s * s));
}

struct Need {
  std::int64_t fixed = 0;     // of all rows
  std::int64_t tile_row = 0;  // per row of the absorbed part; 0: there is none
};

Need need_of(const ModelConfig& config, const ModelPlan& plan, const Machine& machine,
             const PlanRequest& request) {
  // Each decoding request has one row and one for each draft, all with logits.
  const std::int64_t decoding = decoding_rows(request.max_running_requests, request.draft_tokens);
  const std::int64_t rows = plus(plan.max_rows(), decoding);
  const Share& share = plan.ranks.most;
  std::int64_t attention = 0;
  std::int64_t selected = 0;
  Need out;
  for (const GroupPlan& g : plan.groups) {
    const AttentionRow r = attention_row(config, share, g.plan);
    const bool codes = config.has_fp8() && is_gpu(machine.device);
    attention =
        std::max(attention, r.kept + (codes ? codes_row(config, share, g.plan.problem) : 0));
    out.tile_row = std::max(out.tile_row, r.tiled);
    selected +=
        4 * std::int64_t{g.plan.problem.listed_keys()};  // on top of the budget of top-k rows
  }
  std::int64_t residual = row(config.hidden) * (config.norms.of_inputs_alone() ? 2 : 3);
  // Outputs of both parts, and what the router reads.
  if (!config.moe.names.dense.empty()) residual += 2 * row(config.hidden);
  if (const std::int64_t width = config.layer_inputs.width; width > 0) {
    // The inputs of all layers, twice while they are made.
    residual += 2 * row(config.layers * width) + row(config.hidden);
  }
  if (const std::int64_t rank = config.norms.gate_rank; rank > 0) {
    residual += row(config.hidden) + 2 * row(rank);
  }
  if (config.int4_order && is_gpu(machine.device)) {
    // x with its columns in a weight's order, as bf16.
    std::int64_t cols = config.ffn;
    for (const GroupPlan& g : plan.groups) {
      cols = std::max(cols, widest_row(config, share, g.plan.problem));
    }
    residual += 2 * cols + 64;
  }
  if (const std::int64_t streams = config.hyper.streams; streams > 0) {
    // All streams, the input and output of a part of a layer, and its mixing weights.
    residual += row(streams * config.hidden) + row(streams + streams * streams) +
                row(2 * streams + streams * streams);
    if (is_gpu(machine.device)) {
      // Activations in bf16, and the partial sums of a narrow product's slices.
      residual += row(config.hidden, DType::bf16) + narrow_sums(config);
    }
  }
  const std::int64_t layer =
      std::max({times(rows, attention), delta_rows(config, plan, share, rows),
                feed_forward(config, share, plan.groups.front().plan, rows)});
  // The GPU's logits have a budget of their own.
  const std::int64_t logit_row = is_gpu(machine.device) ? 0 : row(share.vocab.count);
  const std::int64_t state = row(std::int64_t{std::max(1, config.hyper.streams)} * config.hidden);
  const std::int64_t logits =
      times(decoding, state + 2 * row(config.hidden) + row(config.hyper.streams) + logit_row);
  out.fixed = plus(plus(times(rows, residual), std::max(layer, logits)), times(decoding, selected));
  if (config.drafts) {
    // The inputs that a draft layer joins, and its hidden states.
    const DType dtype = is_gpu(machine.device) ? DType::bf16 : DType::f32;
    const std::int64_t joined = row(config.hidden, dtype) + row(config.state_width(), dtype);
    out.fixed = plus(out.fixed, times(rows, joined + row(config.state_width(), dtype)));
  }
  if (!is_gpu(machine.device)) {
    out.fixed = plus(out.fixed, times(machine.processors, kPackedBytes));
    if (config.int4_order) {
      out.fixed = plus(out.fixed, ordered_rows(config, plan.groups.front().plan, rows));
    }
  }
  return out;
}

}  // namespace

std::variant<Budget, Reason> plan_activations(const ModelConfig& config, const ModelPlan& plan,
                                              const Machine& machine, const PlanRequest& request) {
  const Need need = need_of(config, plan, machine, request);
  const std::int64_t rows = plan.max_rows();
  const std::int64_t ceiling = request.activations_budget;
  const std::int64_t room = ceiling > 0 ? ceiling - need.fixed : kAbsorbedTile;
  if (room < need.tile_row) {
    const std::int64_t least = plus(need.fixed, need.tile_row);
    return Reason{Rule::budget,
                  "activations",
                  "--activations-budget",
                  fmt::format("at least {} for {} rows of a step ({} bytes)", human_bytes(least),
                              rows, least),
                  fmt::format("{} ({} bytes)", human_bytes(ceiling), ceiling),
                  fmt::format("--activations-budget {}", least)};
  }
  if (need.tile_row == 0) return Budget{BudgetKind::activations, need.fixed, 0};
  const std::int64_t tile = std::clamp<std::int64_t>(room / need.tile_row, 1, rows);
  return Budget{BudgetKind::activations, plus(need.fixed, times(tile, need.tile_row)),
                tile < rows ? tile : 0};
}

}  // namespace lathe
