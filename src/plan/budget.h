// Bytes of every large buffer of a plan, asked before anything is allocated. A buffer has a ceiling
// and work is tiled to fit it.
#pragma once

#include <algorithm>
#include <cstdint>
#include <span>
#include <vector>

#include "attn/machine.h"
#include "plan/plan.h"
#include "plan/plan_request.h"
#include "plan/reason.h"

namespace lathe {

/// Dense latent keys are gathered, and their partial softmax folded, in runs of a multiple of this
/// many: what a gather workspace holds at least, unless a request has fewer.
inline constexpr std::int64_t kGatherTileKeys = 1024;

/// The largest step that buffers are sized for.
struct Demand {
  std::int64_t rows = 0;  // query rows
  std::int64_t requests = 0;
  std::int64_t context = 0;  // tokens of the longest request
};

/// Buffers of `plan` at `demand`: indexer logits, top-k rows, gather workspace, split partials,
/// rows of expanding workers, expanded keys, compressor state, step metadata. Zero-sized ones are
/// left out.
std::vector<Budget> budgets_for(const Plan& plan, const Machine& machine,
                                const PlanRequest& request, Demand demand);

/// Tokens before a row's own that a window needs, and so what a request keeps at least; 0: all.
constexpr std::int64_t kept_tokens(const AttentionProblem& problem) {
  return problem.window == 0 ? 0 : std::max(1, problem.window - 1);
}

/// Main pages that `requests` requests with a window hold at once at most, in a step that brings
/// them `rows` rows together, where they may resume at multiples of `block_tokens` tokens.
/// Precondition: the problem has a window.
std::int64_t window_pages(const Plan& plan, std::int64_t block_tokens, std::int64_t requests,
                          std::int64_t rows);

/// Tokens of a page of compressed entries. Precondition: the problem has two sources.
inline std::int64_t entry_page_tokens(const Plan& plan) {
  const CachePlan& c = *plan.cache(CacheRole::compressed);
  return std::int64_t{c.page_size} * c.tokens_per_entry;
}

/// Bytes of the plan's pools for a number of tokens, all layers.
std::int64_t cache_bytes(const Plan& plan, std::int64_t tokens);

/// Their sum, at most INT64_MAX.
std::int64_t bytes_of_budgets(std::span<const Budget> budgets);

/// Rule::memory: weights and buffers beyond the machine, each large one named.
Reason too_much(const Machine& machine, std::span<const Budget> budgets, std::int64_t weight_bytes);

/// What the budgets cannot hold: one row's tile beyond its ceiling (Rule::budget); buffers, or
/// buffers and the cache of --max-total-tokens, beyond the machine (Rule::memory).
std::vector<Reason> check_budgets(const Plan& plan, const Machine& machine,
                                  const PlanRequest& request);

}  // namespace lathe
