// Budgets that a request names for buffers which its plan has not.
#pragma once

#include "base/result.h"
#include "plan/model_plan.h"
#include "plan/plan_request.h"

namespace lathe {

/// The error if --indexer-logits-budget or --gather-budget has another value than the default, and
/// no group has such a buffer.
Result<void> check_budget_flags(const ModelPlan& plan, const PlanRequest& request);
/// The request with the defaults in place of what check_budget_flags() refuses.
PlanRequest without_idle_budgets(const ModelPlan& plan, PlanRequest request);

}  // namespace lathe
