#include "plan/budget_flags.h"

#include <cstdint>
#include <string>
#include <string_view>

namespace lathe {
namespace {

struct BudgetFlag {
  std::string_view flag;
  std::int64_t PlanRequest::*bytes;
  BudgetKind kind;
  std::string_view wanted, offered;
};
constexpr BudgetFlag kBudgetFlags[] = {
    {"--indexer-logits-budget", &PlanRequest::logits_budget, BudgetKind::indexer_logits,
     "a model whose index chooses keys", "one without an index"},
    {"--gather-budget", &PlanRequest::gather_budget, BudgetKind::gather,
     "a plan that gathers keys into a buffer", "one without that buffer"},
};

bool is_idle(const BudgetFlag& flag, const ModelPlan& plan, const PlanRequest& request) {
  return request.*flag.bytes != PlanRequest().*flag.bytes && plan.budget(flag.kind) == nullptr;
}

}  // namespace

Result<void> check_budget_flags(const ModelPlan& plan, const PlanRequest& request) {
  for (const BudgetFlag& b : kBudgetFlags) {
    if (!is_idle(b, plan, request)) continue;
    return Error{ErrorCode::invalid_argument, std::string(b.flag), std::string(b.wanted),
                 std::string(b.offered), "leave it out"};
  }
  return {};
}

PlanRequest without_idle_budgets(const ModelPlan& plan, PlanRequest request) {
  for (const BudgetFlag& b : kBudgetFlags) {
    if (is_idle(b, plan, request)) request.*b.bytes = PlanRequest().*b.bytes;
  }
  return request;
}

}  // namespace lathe
