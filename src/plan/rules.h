// The rules that a kernel must pass for a phase over a layout. Choosing and refusing are the same
// function: a kernel that passes all rules gives a route, another one the reasons.
#pragma once

#include <optional>
#include <vector>

#include "attn/capability.h"
#include "plan/plan.h"
#include "plan/plan_request.h"
#include "plan/reason.h"
#include "plan/registry.h"

namespace lathe {

/// What a kernel is asked to do.
struct Candidate {
  const AttentionProblem& problem;
  const Machine& machine;
  const PlanRequest& request;
  const Registry& registry;
  const CacheLayout& layout;  // of the main cache and, if there is one, the compressed cache
  std::int32_t page_size;     // tokens per page of the main cache
  Phase phase;
};

/// Entries of a compressed page that covers page_size tokens.
constexpr std::int32_t compressed_page_size(const AttentionProblem& p, std::int32_t page_size) {
  return p.two_sources() ? page_size / p.compress_ratio : page_size;
}

/// Most query rows of a step of the phase.
std::int64_t rows_of(Phase phase, const PlanRequest& request);

/// A kernel's name in reasons: "native sm90.sparse_latent.native".
std::string subject_of(const Capability& kernel);

/// A route with the kernel, or all rules that it breaks.
struct Verdict {
  std::optional<Route> route;
  std::vector<Reason> reasons;
};
Verdict judge(const Candidate& candidate, const Kernel& kernel);

}  // namespace lathe
