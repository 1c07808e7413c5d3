#include "engine/schedule/page_kinds.h"

#include <algorithm>

#include "plan/budget.h"

namespace lathe {

std::vector<PageKind> page_kinds(KvCache& cache, std::int64_t step_rows) {
  const ModelPlan& plan = cache.plan();
  std::vector<PageKind> out;
  for (std::size_t g = 0; g < plan.groups.size(); ++g) {
    const Plan& p = plan.groups[g].plan;
    PageKind kind{&cache.ledger(g), {.page_size = p.main().page_size}};
    kind.rule.resume_tokens = kept_tokens(p.problem);
    if (p.problem.chunked) kind.rule.chunk_tokens = p.problem.window;
    if (kind.rule.resume_tokens > 0) {
      kind.rule.most =
          std::min(kind.ledger->free(), window_pages(p, plan.block_tokens, 1, step_rows));
    }
    out.push_back(kind);
  }
  for (std::size_t g = 0; g < plan.groups.size(); ++g) {
    if (PoolGroup* entries = cache.entries(g)) {
      out.push_back({&entries->ledger(), {.page_size = entry_page_tokens(plan.groups[g].plan)}});
    }
  }
  for (std::size_t g = 0; g < plan.groups.size(); ++g) {
    if (StatePool* state = cache.state(g)) {
      out.push_back({&state->ledger(),
                     {.page_size = plan.block_tokens,
                      .resume_tokens = plan.block_tokens,
                      .most = std::min(state->ledger().free(), kStateSlotsPerRequest),
                      .per_step = kStateSlotsPerStep,
                      .rewrites = true}});
    }
  }
  return out;
}

}  // namespace lathe
