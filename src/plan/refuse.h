// Builds a refusal: which of the many broken rules the user should read, and which changes help.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "attn/machine.h"
#include "attn/problem.h"
#include "layout/layout.h"
#include "plan/plan_request.h"
#include "plan/reason.h"
#include "plan/registry.h"

namespace lathe {

/// The result for one layout and page size: the phases without a kernel, and all rules broken
/// there.
struct LayoutOutcome {
  struct Failure {
    Phase phase;
    std::vector<Reason> reasons;  // empty: no kernel matches the request
  };
  CacheLayout layout;
  std::int32_t page_size;
  std::vector<Failure> failures;
};

/// "no decode kernel fits", "no prefill kernel fits", "no prefill and no decode kernel fits" or "no
/// layout fits both sides"
std::string headline_of(const std::vector<LayoutOutcome>& outcomes);

/// "sparse_latent on sm90, prefill flashmla_kv, decode trtllm, kv-cache-dtype fp8_e4m3"
std::string describe_request(const AttentionProblem& problem, const Machine& machine,
                             const PlanRequest& request);

/// The reasons that matter, each once. If no layout serves a side: the reasons of the layouts with
/// the fewest broken rules. If each side has layouts but there is no common one: a `pair` reason
/// per side, and why the other side's kernels cannot use that side's layouts.
std::vector<Reason> explain_outcomes(const AttentionProblem& problem, const Machine& machine,
                                     const PlanRequest& request, const Registry& registry,
                                     const std::vector<LayoutOutcome>& outcomes);

/// For each of --chunked-prefill-size, --max-running-requests and --context-length, changed alone,
/// the largest value below the requested one that `fits`. If no change is enough alone: the first
/// two together. Values of 64 and more are multiples of 64. Empty: nothing fits.
std::vector<std::string> sizes_that_fit(const PlanRequest& request,
                                        const std::function<bool(const PlanRequest&)>& fits);

/// Flag settings that make the request legal: first a single change, then two, then another device.
std::vector<std::string> suggest(
    const AttentionProblem& problem, const Machine& machine, const PlanRequest& request,
    const Registry& registry, const std::function<bool(const Machine&, const PlanRequest&)>& legal);

}  // namespace lathe
