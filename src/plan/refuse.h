// Builds a refusal: which of the many broken rules a person needs to read, and which changes would
// help.
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

/// What happened to one layout and page size: the phases that no kernel serves, with every rule
/// broken there.
struct LayoutOutcome {
  struct Failure {
    Phase phase;
    std::vector<Reason> reasons;  // empty: no kernel matches the request
  };
  CacheLayout layout;
  std::int32_t page_size;
  std::vector<Failure> failures;
};

/// "no decode kernel fits", "no prefill kernel fits", "no kernel fits on either side", "no layout
/// fits both sides"
std::string headline_of(const std::vector<LayoutOutcome>& outcomes);

/// "--attention dsa on sm90, prefill flashmla_kv, decode trtllm, kv-cache-dtype fp8_e4m3"
std::string describe_request(const AttentionProblem& problem, const Machine& machine,
                             const PlanRequest& request);

/// The reasons worth reading, each once: of a side that nothing serves, those of the layouts that
/// came nearest; where each side has layouts but no common one, a `pair` reason per side and what
/// keeps the other side from its layouts.
std::vector<Reason> explain_outcomes(const AttentionProblem& problem, const Machine& machine,
                                     const PlanRequest& request, const Registry& registry,
                                     const std::vector<LayoutOutcome>& outcomes);

/// The largest --chunked-prefill-size, --max-running-requests or --context-length below the
/// requested one that `fits`, each changed alone; where none is enough alone, the first two
/// together. A multiple of 64 where it is as large. Empty: no size fits.
std::vector<std::string> sizes_that_fit(const PlanRequest& request,
                                        const std::function<bool(const PlanRequest&)>& fits);

/// Flag settings that make the request legal, nearest first: one change, then two, then another
/// device.
std::vector<std::string> suggest(
    const AttentionProblem& problem, const Machine& machine, const PlanRequest& request,
    const Registry& registry, const std::function<bool(const Machine&, const PlanRequest&)>& legal);

}  // namespace lathe
