// The planner: problem + machine + request + registry -> Plan or Refusal.
//
// Every layout that the problem, --kv-cache-dtype and --kv-layout leave open is tried with every
// page size that --page-size leaves open; for each, every kernel that matches the side's flag is
// judged in every phase (rules.h). A layout is legal when each phase that the request needs has
// routes that cover its largest step. Among the legal ones the planner takes the most precise
// format first and the least estimated time within it (cost.h).
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

/// Everything that was tried and did not fit, for --explain.
struct Rejection {
  std::string layout;
  std::int32_t page_size = 0;
  Phase phase = Phase::extend;
  std::string kernel;
  std::vector<Reason> reasons;
};

using PlanResult = Result<Plan, Refusal>;

/// Proves a plan or says why there is none. `rejections`, where given, receives every candidate
/// that broke a rule.
PlanResult make_plan(const AttentionProblem& problem, const Machine& machine,
                     const PlanRequest& request, const Registry& registry,
                     std::vector<Rejection>* rejections = nullptr);

/// The layouts that can hold a problem's keys, most precise first.
std::vector<LayoutKind> layouts_of(const AttentionProblem& problem);

}  // namespace lathe
