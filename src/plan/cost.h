// The cost model that ranks legal candidates: the larger of flops and bytes over the machine's
// peaks, times the shares of them that the kernel declares, plus its launch. It ranks; it promises
// no time.
#pragma once

#include "attn/capability.h"
#include "plan/plan.h"
#include "plan/rules.h"

namespace lathe {

/// The step that candidates are compared on.
struct NominalStep {
  std::int64_t rows = 0;
  std::int64_t context = 0;  // keys of every request
};

/// The largest step that the request allows in a phase, at no more than 16384 tokens of context: a
/// typical long request, not the longest possible one.
NominalStep nominal_step(Phase phase, const PlanRequest& request);

/// Estimated seconds of one layer's attention.
double estimate_seconds(const Candidate& candidate, const Capability& kernel, const Route& route,
                        NominalStep step);

/// Keys that one query row attends to at a context.
std::int64_t keys_per_row(const AttentionProblem& problem, std::int64_t context);

}  // namespace lathe
