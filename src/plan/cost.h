// The cost model that ranks legal candidates: the larger of flops / peak flops and bytes / peak
// bandwidth, each peak times the share of it that the kernel reaches, plus the launch. It is for
// ranking; it does not predict times.
#pragma once

#include "attn/capability.h"
#include "plan/plan.h"
#include "plan/rules.h"

namespace lathe {

/// The step for which candidates are compared.
struct NominalStep {
  std::int64_t rows = 0;
  std::int64_t context = 0;  // keys of each request
};

/// The largest step that the request allows in a phase, but with at most 16384 tokens of context: a
/// typical long request, not the longest possible one.
NominalStep nominal_step(Phase phase, const PlanRequest& request);

/// Estimated seconds of one layer's attention.
double estimate_seconds(const Candidate& candidate, const Capability& kernel, const Route& route,
                        NominalStep step);

/// Keys that a query row attends to if its request has `context` keys.
std::int64_t keys_per_row(const AttentionProblem& problem, std::int64_t context);

}  // namespace lathe
