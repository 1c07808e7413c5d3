// The rules that a kernel must pass to serve one phase over one layout. Choosing and checking are
// the same function: a candidate that passes every rule is a route, and one that does not says why.
#pragma once

#include <optional>
#include <vector>

#include "attn/capability.h"
#include "plan/plan.h"
#include "plan/plan_request.h"
#include "plan/reason.h"
#include "plan/registry.h"

namespace lathe {

/// What is being asked of a kernel.
struct Candidate {
  const AttentionProblem& problem;
  const Machine& machine;
  const PlanRequest& request;
  const Registry& registry;
  const CacheLayout& layout;  // of the main and, where there is one, the compressed cache
  std::int32_t page_size;     // tokens per page of the main cache
  Phase phase;
};

/// Entries of a compressed page that covers page_size tokens.
constexpr std::int32_t compressed_page_size(const AttentionProblem& p, std::int32_t page_size) {
  return p.two_sources() ? page_size / p.compress_ratio : page_size;
}

/// Query rows of the largest step of a phase.
std::int64_t rows_of(Phase phase, const PlanRequest& request);

/// "native sm90.sparse_latent.native": how reasons name a kernel.
std::string subject_of(const Capability& kernel);

/// The route that `kernel` offers, or every rule that it breaks.
struct Verdict {
  std::optional<Route> route;
  std::vector<Reason> reasons;
};
Verdict judge(const Candidate& candidate, const Kernel& kernel);

}  // namespace lathe
