#include "plan/floor.h"

#include <algorithm>

#include "plan/cost.h"

namespace lathe {
namespace {

// Index keys that are scored for a row with `context` keys. 0 if all would be selected.
std::int64_t ranked(const AttentionProblem& p, std::int64_t context) {
  if (!p.sparse()) return 0;
  const std::int64_t keys = context / p.tokens_per_index_key();
  return keys > p.index_top_k() ? keys : 0;
}

// Entries that a row reads in the pool of that role.
std::int64_t entries_read(const AttentionProblem& p, CacheRole role, std::int64_t context) {
  if (role == CacheRole::index) return ranked(p, context);
  const std::int64_t all = keys_per_row(p, context);
  if (!p.two_sources()) return all;
  const std::int64_t window = std::min<std::int64_t>(p.window, context);
  return role == CacheRole::main ? window : all - window;
}

}  // namespace

double decode_cache_bytes(const Plan& plan, std::int64_t context) {
  double sum = 0;
  for (const CachePlan& c : plan.caches) {
    const double entry = static_cast<double>(c.page_bytes()) / c.page_size;
    sum += static_cast<double>(entries_read(plan.problem, c.role, context)) * entry *
           plan.layers_of(c.role);
  }
  return sum;
}

AttentionFlops attention_flops(const Plan& plan, Phase phase, std::int64_t rows,
                               std::int64_t cached) {
  const AttentionProblem& p = plan.problem;
  const Route* route = plan.route(phase, rows, cached + rows);
  const bool expanded =
      route != nullptr && route->kind == KernelKind::ragged && p.kind != ProblemKind::grouped_query;
  std::int64_t keys = 0, ranks = 0;
  for (std::int64_t i = 1; i <= rows; ++i) {
    keys += keys_per_row(p, cached + i);
    ranks += ranked(p, cached + i);
  }
  const std::int64_t pair =
      expanded ? p.qk_nope_head + p.rope + p.v_head : std::int64_t{p.qk_dim()} + p.v_dim();
  const double heads = static_cast<double>(plan.layers) * p.heads;
  const double index_heads = static_cast<double>(plan.index_layers) * p.index_heads;
  return {2 * heads * static_cast<double>(keys * pair),
          2 * index_heads * static_cast<double>(ranks) * p.index_dim};
}

}  // namespace lathe
