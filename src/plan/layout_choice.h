// Which layouts and page sizes a problem and the request leave open.
#pragma once

#include <cstdint>
#include <vector>

#include "attn/problem.h"
#include "layout/layout.h"
#include "plan/plan_request.h"
#include "plan/reason.h"

namespace lathe {

struct LayoutChoice {
  // Layouts of one number format form a tier; tiers are tried in order and the first with a legal
  // plan wins. With --kv-cache-dtype auto they run from the checkpoint's own precision downwards,
  // so that precision is lost only on request.
  std::vector<std::vector<CacheLayout>> tiers;
  std::vector<std::int32_t> page_sizes;  // in order of preference
  bool automatic = true;                 // the layout was left open
  std::vector<Reason> reasons;           // where nothing is left
};

LayoutChoice choose_layouts(const AttentionProblem& problem, const PlanRequest& request);

}  // namespace lathe
