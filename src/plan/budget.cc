#include "plan/budget.h"

#include "attn/draft_rows.h"

#include <fmt/format.h>

#include <algorithm>
#include <string_view>

#include "attn/compressor.h"
#include "attn/expansion.h"
#include "plan/cost.h"
#include "plan/explain.h"
#include "plan/prefix_sharing.h"

namespace lathe {
namespace {

// times() and plus() saturate at INT64_MAX instead of wrapping, so an absurd request cannot look
// small.
std::int64_t times(std::int64_t a, std::int64_t b) {
  std::int64_t product = 0;
  return __builtin_mul_overflow(a, b, &product) ? INT64_MAX : product;
}
std::int64_t times(std::int64_t a, std::int64_t b, std::int64_t c) { return times(times(a, b), c); }
std::int64_t plus(std::int64_t a, std::int64_t b) {
  std::int64_t sum = 0;
  return __builtin_add_overflow(a, b, &sum) ? INT64_MAX : sum;
}

// Bytes of a row's f32 indexer logits: one per index key.
std::int64_t logits_row_bytes(const AttentionProblem& p, std::int64_t context) {
  const std::int64_t keys = context / p.tokens_per_index_key();
  return 4 * std::max<std::int64_t>(1, keys);
}

const Route* compact_route(const Plan& plan) {
  for (const PhasePlan& phase : plan.phases) {
    for (const Route& r : phase.routes) {
      if (r.adapter && !r.adapter->whole_pool) return &r;
    }
  }
  return nullptr;
}

// The maximum over routes: they run one at a time and share the scratch.
template <class F>
std::int64_t most_of_routes(const Plan& plan, F bytes) {
  std::int64_t most = 0;
  for (const PhasePlan& phase : plan.phases) {
    for (const Route& r : phase.routes) most = std::max(most, bytes(r));
  }
  return most;
}

std::int64_t split_partials(const Plan& plan, const Machine& machine, Demand demand) {
  const AttentionProblem& p = plan.problem;
  const std::int64_t parts = demand.requests + machine.processors;
  const std::int64_t one_a_worker = times(parts, p.heads, (std::int64_t{p.v_dim()} + 1) * 4);
  const std::int64_t partials = most_of_routes(plan, [&](const Route& r) {
    return !r.split_kv ? 0 : r.split_bytes > 0 ? r.split_bytes : one_a_worker;
  });
  // Shared prefixes are a call of their own, in the same workspace.
  if (!plan.prefixes.on) return partials;
  return plus(times(2, partials), prefix_part_bytes(plan, demand.requests));
}

// Bytes of f32 queries and accumulators, per head, of the rows that each worker keeps while it
// expands keys.
std::int64_t worker_rows(const Plan& plan, const Machine& machine, Demand demand) {
  const AttentionProblem& p = plan.problem;
  const std::int64_t row = (std::int64_t{p.qk_nope_head} + p.rope + p.v_head) * 4;
  return most_of_routes(plan, [&](const Route& r) {
    return times(machine.processors, std::min(demand.rows, r.worker_rows), row);
  });
}

// Bytes of all heads of as many keys as a step can have; at most the routes' limit.
std::int64_t expanded_keys(const Plan& plan, Demand demand) {
  const AttentionProblem& p = plan.problem;
  const std::int64_t all = times(demand.requests, demand.context, expanded_key_bytes(p, p.heads));
  return most_of_routes(plan, [&](const Route& r) { return std::min(all, r.expanded_bytes); });
}

// Compact rows that must fit at once. Dense latent keys are gathered in runs. The selected keys or
// the window of a row must be gathered together, and so must all keys of a grouped-query request.
std::int64_t least_gather_rows(const AttentionProblem& p, std::int64_t context) {
  if (p.kind == ProblemKind::dense_latent) return std::min(context, kGatherTileKeys);
  if (p.kind == ProblemKind::grouped_query) return context;
  return keys_per_row(p, context);
}

// Bytes in GPU memory for a step: the arrays of a prefill segment and of a decode segment, each
// array at a multiple of 256 bytes; the list of keys for a gather workspace of `ceiling` bytes; and
// the inputs and results of sampling.
std::int64_t staged_step(const Plan& plan, Demand demand, std::int64_t width,
                         std::int64_t ceiling) {
  constexpr std::int64_t kArrays = 32 * 256, kDraw = 512;
  // A recorded step that verifies drafts has as many requests as rows.
  const std::int64_t drafted = recorded_verify_rows(demand.requests, plan.draft_tokens);
  demand.requests = std::max(demand.requests, drafted);
  demand.rows = std::max(demand.rows, drafted);
  const AttentionProblem& p = plan.problem;
  std::int64_t row = 64;  // positions, lengths, slots, offsets, tokens
  if (p.two_sources()) row += 4 * std::min<std::int64_t>(p.window, plan.context_length);
  if (plan.prefixes.on) row += 4 * (1 + 3 * kPrefixLevels);
  const std::int64_t segment = plus(times(demand.requests, width + 16, 4), times(demand.rows, row));
  std::int64_t gathered = 0;
  if (const Route* r = compact_route(plan)) {
    gathered =
        4 * std::min(times(demand.requests, demand.context), ceiling / r->adapter->out_bytes);
  }
  return plus(plus(times(2, plus(segment, kArrays)), gathered), times(demand.requests, kDraw));
}

Budget tiled(BudgetKind kind, std::int64_t rows, std::int64_t row_bytes, std::int64_t ceiling) {
  const std::int64_t fit = std::min(rows, std::max<std::int64_t>(1, ceiling / row_bytes));
  return {kind, fit * row_bytes, fit < rows ? fit : 0};
}

}  // namespace

std::vector<Budget> budgets_for(const Plan& plan, const Machine& machine,
                                const PlanRequest& request, Demand demand) {
  const AttentionProblem& p = plan.problem;
  std::vector<Budget> out;
  if (p.index_heads > 0) {
    out.push_back(tiled(BudgetKind::indexer_logits, demand.rows,
                        logits_row_bytes(p, demand.context), request.logits_budget));
    const std::int64_t groups = p.index_pool > 0 ? p.index_top_k() : 0;
    out.push_back({BudgetKind::top_k_rows, times(demand.rows, p.listed_keys() + groups, 4), 0});
  }
  if (const Route* r = compact_route(plan)) {
    // A request's keys are gathered once for all its query rows; with a selection a row needs at
    // most top_k keys. check_budgets() rejects a budget that is too small for a single row.
    const std::int64_t keys = keys_per_row(p, demand.context);
    const std::int64_t row_bytes = r->adapter->out_bytes;
    const std::int64_t bytes = times(std::max(demand.context, keys), row_bytes);
    const std::int64_t least = times(least_gather_rows(p, demand.context), row_bytes);
    const bool fits = bytes <= request.gather_budget;
    out.push_back(
        {BudgetKind::gather, std::max(least, std::min(bytes, request.gather_budget)),
         fits ? 0 : std::max<std::int64_t>(1, request.gather_budget / (keys * row_bytes))});
  }
  if (const std::int64_t bytes = split_partials(plan, machine, demand)) {
    out.push_back({BudgetKind::split_partials, bytes, 0});
  }
  if (const std::int64_t bytes = worker_rows(plan, machine, demand)) {
    out.push_back({BudgetKind::worker_rows, bytes, 0});
  }
  if (const std::int64_t bytes = expanded_keys(plan, demand)) {
    out.push_back({BudgetKind::expanded_keys, bytes, 0});
  }
  if (const std::int64_t state = compressor_bytes(p)) {
    out.push_back({BudgetKind::compressor_state, times(state, demand.requests, plan.layers), 0});
  }
  const std::int64_t page = std::int64_t{plan.main().page_size};
  const std::int64_t pages = (demand.context + page - 1) / page;
  const std::int64_t width =
      (pages + plan.table_multiple - 1) / plan.table_multiple * plan.table_multiple;
  const std::int64_t step =
      times(plus(times(demand.requests, width + 4), times(demand.rows, 4)), 4);
  out.push_back(
      {BudgetKind::step,
       is_gpu(machine.device) ? staged_step(plan, demand, width, request.gather_budget) : step, 0});
  return out;
}

std::int64_t window_pages(const Plan& plan, std::int64_t block_tokens, std::int64_t requests,
                          std::int64_t rows) {
  const std::int64_t page = plan.main().page_size;
  // Kept: the window before the last block boundary and the tokens since. They may begin inside a
  // page, so one page more; the rows may end inside a page, so another one.
  const std::int64_t kept = (kept_tokens(plan.problem) + block_tokens - 1 + page - 1) / page + 1;
  return plus(times(requests, kept + 1), (rows + page - 1) / page);
}

std::int64_t boundary_pages(const Plan& plan) {
  const std::int64_t page = plan.main().page_size;
  return (kept_tokens(plan.problem) + page - 1) / page;
}

std::int64_t most_window_pages(const Plan& plan, std::int64_t block_tokens) {
  return plus(window_pages(plan, block_tokens, plan.max_requests, plan.max_rows),
              times(kept_boundaries(plan.max_requests), boundary_pages(plan)));
}

std::int64_t cache_bytes(const Plan& plan, std::int64_t tokens) {
  std::int64_t sum = 0;
  for (const CachePlan& c : plan.caches) {
    const std::int64_t tokens_per_page = std::int64_t{c.page_size} * c.tokens_per_entry;
    if (c.role == CacheRole::main && plan.problem.kind == ProblemKind::window_compressed) {
      // The window slides: a request keeps only the pages of its last tokens, whatever its length.
      const std::int64_t kept = std::min<std::int64_t>(plan.problem.window, plan.context_length);
      const std::int64_t pages = (kept + tokens_per_page - 1) / tokens_per_page + 1;
      const std::int64_t all =
          plus(times(plan.max_requests, pages),
               times(kept_boundaries(plan.max_requests), boundary_pages(plan)));
      sum = plus(sum, times(plan.layers, all, c.page_bytes()));
      continue;
    }
    std::int64_t pages = (tokens + tokens_per_page - 1) / tokens_per_page;
    if (plan.problem.window > 0) {
      pages = std::min(pages, most_window_pages(plan, c.page_size));
    }
    sum = plus(sum, times(plan.layers_of(c.role), pages, c.page_bytes()));
  }
  return sum;
}

std::int64_t bytes_of_budgets(std::span<const Budget> budgets) {
  std::int64_t sum = 0;
  for (const Budget& b : budgets) sum = plus(sum, b.bytes);
  return sum;
}

Reason too_much(const Machine& machine, std::span<const Budget> budgets,
                std::int64_t weight_bytes) {
  const std::int64_t sum = plus(bytes_of_budgets(budgets), weight_bytes);
  std::string parts = weight_bytes > 0 ? "weights " + human_bytes(weight_bytes) : "";
  const std::int64_t negligible = is_gpu(machine.device) ? 0 : sum / 16;
  for (const Budget& b : budgets) {
    if (b.bytes < negligible) continue;
    parts +=
        fmt::format("{}{} {}", parts.empty() ? "" : ", ", meaning(b.kind), human_bytes(b.bytes));
  }
  return {Rule::memory,
          weight_bytes > 0 ? "weights and buffers" : "buffers",
          "memory",
          "at most the machine's " + human_bytes(machine.memory_bytes),
          fmt::format("{} ({})", human_bytes(sum), parts),
          ""};
}

std::vector<Reason> check_budgets(const Plan& plan, const Machine& machine,
                                  const PlanRequest& request) {
  std::vector<Reason> out;
  const AttentionProblem& p = plan.problem;
  const std::int64_t context = plan.context_length;
  if (p.index_heads > 0 && logits_row_bytes(p, context) > request.logits_budget) {
    out.push_back({Rule::budget, "indexer logits", "--indexer-logits-budget",
                   fmt::format("at least one row, {} bytes", logits_row_bytes(p, context)),
                   fmt::format("{} bytes", request.logits_budget),
                   fmt::format("--indexer-logits-budget {}", logits_row_bytes(p, context))});
  }
  if (const Route* r = compact_route(plan)) {
    const std::int64_t rows = least_gather_rows(p, context);
    const std::int64_t least = times(rows, r->adapter->out_bytes);
    if (least > request.gather_budget) {
      const std::string_view what = p.kind == ProblemKind::dense_latent    ? "a tile"
                                    : p.kind == ProblemKind::grouped_query ? "one request"
                                                                           : "one row";
      out.push_back({Rule::budget, "gather workspace", "--gather-budget",
                     fmt::format("the {} keys of {}, {} bytes", rows, what, least),
                     fmt::format("{} bytes", request.gather_budget),
                     fmt::format("--gather-budget {}", least)});
    }
  }
  const std::int64_t buffers = bytes_of_budgets(plan.budgets);
  if (buffers > machine.memory_bytes) {
    out.push_back(too_much(machine, plan.budgets, 0));
    return out;
  }
  if (request.max_total_tokens > 0) {
    const std::int64_t cache = cache_bytes(plan, request.max_total_tokens);
    if (plus(cache, buffers) > machine.memory_bytes) {
      const std::int64_t left = std::max<std::int64_t>(0, machine.memory_bytes - buffers);
      const std::int64_t fit = static_cast<std::int64_t>(
          static_cast<double>(left) /
          (static_cast<double>(cache) / static_cast<double>(request.max_total_tokens)));
      out.push_back({Rule::memory, "cache", "--max-total-tokens",
                     fmt::format("at most {} tokens next to {} bytes of buffers", fit, buffers),
                     fmt::format("{} tokens, {} bytes", request.max_total_tokens, cache),
                     fmt::format("--max-total-tokens {}",
                                 fit / plan.main().page_size * plan.main().page_size)});
    }
  }
  return out;
}

}  // namespace lathe
