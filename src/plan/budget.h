// Sizes of a plan's large buffers, computed before anything is allocated. Some have a limit from a
// flag; work is then tiled to fit it.
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

/// The gather adapter copies dense latent keys in runs of a multiple of this many and combines the
/// runs' partial softmax. A gather workspace holds at least one run, unless the context is shorter.
inline constexpr std::int64_t kGatherTileKeys = 1024;

/// The largest step that buffers are sized for.
struct Demand {
  std::int64_t rows = 0;  // query rows
  std::int64_t requests = 0;
  std::int64_t context = 0;  // most tokens of a request
};

/// Buffers that `plan` needs for `demand`: indexer logits, top-k rows, gather workspace, split
/// partials, rows of expanding workers, expanded keys, compressor state, step metadata. Leaves out
/// buffers of zero size.
std::vector<Budget> budgets_for(const Plan& plan, const Machine& machine,
                                const PlanRequest& request, Demand demand);

/// Tokens before a row's own that its window needs. A request keeps at least these. 0: all.
constexpr std::int64_t kept_tokens(const AttentionProblem& problem) {
  return problem.window == 0 ? 0 : std::max(1, problem.window - 1);
}

/// Most main pages that `requests` requests hold at once during a step with `rows` rows in total,
/// if they may resume at multiples of `block_tokens` tokens. Precondition: the problem has a
/// window.
std::int64_t window_pages(const Plan& plan, std::int64_t block_tokens, std::int64_t requests,
                          std::int64_t rows);

/// Boundaries inside prompts, where later requests with the same beginning resume, that the prefix
/// cache can keep while `max_requests` requests hold as much as they may. Each needs its window
/// pages and a slot of every state.
constexpr std::int64_t kept_boundaries(std::int64_t max_requests) { return 1 + max_requests / 8; }
/// Main pages of the window before a boundary. Precondition: the problem has a window.
std::int64_t boundary_pages(const Plan& plan);

/// Most main pages that are of use in the pool of a group with a window: what all running requests
/// hold at once, and the pages of kept_boundaries(). Precondition: the problem has a window.
std::int64_t most_window_pages(const Plan& plan, std::int64_t block_tokens);

/// Tokens of a page of compressed entries. Precondition: the problem has two sources.
inline std::int64_t entry_page_tokens(const Plan& plan) {
  const CachePlan& c = *plan.cache(CacheRole::compressed);
  return std::int64_t{c.page_size} * c.tokens_per_entry;
}

/// Bytes of the plan's pools for `tokens` tokens, in all layers.
std::int64_t cache_bytes(const Plan& plan, std::int64_t tokens);

/// The sum of the budgets, at most INT64_MAX.
std::int64_t bytes_of_budgets(std::span<const Budget> budgets);

/// The reason (Rule::memory) that weights and buffers exceed the machine's memory. Names each large
/// buffer.
Reason too_much(const Machine& machine, std::span<const Budget> budgets, std::int64_t weight_bytes);

/// Why the budgets do not fit: the tile of a single row exceeds its limit (Rule::budget); buffers,
/// or buffers and the cache of --max-total-tokens, exceed the machine's memory (Rule::memory).
std::vector<Reason> check_budgets(const Plan& plan, const Machine& machine,
                                  const PlanRequest& request);

}  // namespace lathe
