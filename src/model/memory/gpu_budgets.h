// A model's GPU memory besides weights, cache and the buffers that every device has.
#pragma once

#include <vector>

#include "model/config/config.h"
#include "plan/model_plan.h"

namespace lathe {

/// Budgets schedules, expert_rows, widened_weights, logits, sampler, rope_tables, norm_codes,
/// graphs and reserve. Precondition: the plan is for a GPU.
std::vector<Budget> gpu_budgets(const ModelConfig& config, const ModelPlan& plan,
                                const Machine& machine);

}  // namespace lathe
