// Memory of a step's intermediate tensors, planned alongside a plan's other budgets. The absorbed
// part of latent attention (queries and outputs in the latent space) is by far the widest, so it is
// tiled: a step's rows go through it in segments of the budget's tile_rows.
#pragma once

#include <cstdint>
#include <optional>
#include <variant>

#include "attn/model_plan.h"
#include "model/config.h"

namespace lathe {

/// Bytes of absorbed queries and latents that are worked on at once, unless --activations-budget
/// says otherwise: enough rows that a tile costs no speed.
inline constexpr std::int64_t kAbsorbedTile = std::int64_t{512} << 20;

/// Budget `activations` of steps that bring request.chunked_prefill_size prefill rows and decode
/// request.max_running_requests requests, each with request.draft_tokens drafts; tile_rows 0: no
/// tiles. A reason (Rule::budget): not even one row of the absorbed part fits
/// request.activations_budget.
std::variant<Budget, Reason> plan_activations(const ModelConfig& config, const ModelPlan& plan,
                                              const Machine& machine, const PlanRequest& request);

}  // namespace lathe
