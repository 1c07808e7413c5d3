// The layouts and page sizes that the problem and the request allow.
#pragma once

#include <cstdint>
#include <vector>

#include "attn/problem.h"
#include "layout/layout.h"
#include "plan/plan_request.h"
#include "plan/reason.h"

namespace lathe {

struct LayoutChoice {
  // A tier has the layouts of one number format. Tiers are tried in order; the first with a legal
  // plan wins. With --kv-cache-dtype auto the first tier is the checkpoint's own precision, so
  // precision is lost only if the user asks for it.
  std::vector<std::vector<CacheLayout>> tiers;
  std::vector<std::int32_t> page_sizes;  // in order of preference
  bool automatic = true;                 // --kv-layout is auto
  std::vector<Reason> reasons;           // if nothing is allowed
};

LayoutChoice choose_layouts(const AttentionProblem& problem, const PlanRequest& request);

}  // namespace lathe
