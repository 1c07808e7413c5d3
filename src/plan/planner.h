// The planner: problem + machine + request + registry -> Plan or Refusal.
//
// The planner tries every layout that the problem, --kv-cache-dtype and --kv-layout allow, with
// every page size that --page-size allows. For each of them it judges, in every phase, every kernel
// that the side's backend flag allows (rules.h). A layout is legal if each phase that the request
// needs has routes that cover its largest step. Among legal layouts the planner chooses the most
// precise number format, and within that the least estimated time (cost.h).
#pragma once

#include <string>
#include <vector>

#include "attn/machine.h"
#include "attn/problem.h"
#include "base/result.h"
#include "plan/plan.h"
#include "plan/plan_request.h"
#include "plan/reason.h"
#include "plan/registry.h"

namespace lathe {

/// A kernel that was tried and did not fit, for --explain.
struct Rejection {
  std::string layout;
  std::int32_t page_size = 0;
  Phase phase = Phase::extend;
  std::string kernel;
  std::vector<Reason> reasons;
};

using PlanResult = Result<Plan, Refusal>;

/// Makes a plan, or says why there is none. `rejections`, if not null, gets every candidate that
/// broke a rule.
PlanResult make_plan(const AttentionProblem& problem, const Machine& machine,
                     const PlanRequest& request, const Registry& registry,
                     std::vector<Rejection>* rejections = nullptr);

}  // namespace lathe
