#include "plan/cost.h"

#include <algorithm>

namespace lathe {

NominalStep nominal_step(Phase phase, const PlanRequest& request) {
  return {rows_of(phase, request), std::min<std::int64_t>(request.context_length, 16384)};
}

std::int64_t keys_per_row(const AttentionProblem& p, std::int64_t context) {
  std::int64_t keys = p.window > 0 ? std::min<std::int64_t>(p.window, context) : context;
  if (p.kind == ProblemKind::sparse_latent) keys = std::min<std::int64_t>(p.listed_keys(), context);
  if (p.two_sources()) {
    const std::int64_t entries = context / p.compress_ratio;
    keys += p.top_k > 0 ? std::min<std::int64_t>(p.top_k, entries) : entries;
  }
  return keys;
}

double estimate_seconds(const Candidate& c, const Capability& k, const Route& route,
                        NominalStep step) {
  const AttentionProblem& p = c.problem;
  const bool extend = c.phase == Phase::extend;
  const double rows = static_cast<double>(step.rows);
  const double heads = p.heads;
  const bool expanded = k.kind == KernelKind::ragged;
  const double keys = static_cast<double>(expanded ? step.context : keys_per_row(p, step.context));

  // Each pair of a query head and a key costs a multiply-add per element of the key and of the
  // value.
  double flops = 2 * rows * heads * keys * (p.qk_dim() + p.v_dim());
  if (expanded) {
    const double expand =
        2.0 * static_cast<double>(step.context) * heads * p.nope * (p.qk_nope_head + p.v_head);
    flops = 2 * rows * heads * keys * (p.qk_nope_head + p.rope + p.v_head) + expand;
  }

  // An extend step is one request, and its rows share the keys. In other phases each row counts as
  // a request of its own.
  const double distinct = extend ? static_cast<double>(std::min<std::int64_t>(
                                       step.context, step.rows * static_cast<std::int64_t>(keys)))
                                 : rows * keys;
  double stored = c.layout.bytes_per_token();
  double adapter_bytes = 0;
  if (route.adapter) {
    const double both = static_cast<double>(route.adapter->in_bytes + route.adapter->out_bytes);
    const double pool_rows =
        static_cast<double>(c.machine.memory_bytes) / 2 / c.request.layers / stored;
    adapter_bytes = both * (route.adapter->whole_pool ? pool_rows : distinct);
    stored = static_cast<double>(route.adapter->out_bytes);
  }
  const double q_out = rows * heads * (p.qk_dim() + p.v_dim()) * 2;
  const double bytes = distinct * stored + q_out;

  double peak = c.machine.bf16_flops;
  if (route.arithmetic == Arithmetic::fp8) peak = c.machine.fp8_flops;
  return std::max(flops / (peak * k.flops_share),
                  bytes / (c.machine.bytes_per_second * k.bytes_share)) +
         adapter_bytes / (c.machine.bytes_per_second * 0.85) + k.launch_seconds;
}

}  // namespace lathe
