// The memory budget of a step's intermediate tensors. The absorbed part of latent attention
// (queries and outputs in the latent space) is by far the widest, so it is tiled: a step's rows
// pass through it in segments of the budget's tile_rows.
#pragma once

#include <cstdint>
#include <optional>
#include <variant>

#include "model/config/config.h"
#include "plan/model_plan.h"

namespace lathe {

/// Default of --activations-budget: bytes of absorbed queries and latents in one tile. Large enough
/// that tiling costs no speed.
inline constexpr std::int64_t kAbsorbedTile = std::int64_t{512} << 20;

/// Budget `activations` of steps with request.chunked_prefill_size prefill rows and
/// request.max_running_requests decoding requests, each with request.draft_tokens drafts; tile_rows
/// 0: no tiles. A reason (Rule::budget): not even one row of the absorbed part fits
/// request.activations_budget.
std::variant<Budget, Reason> plan_activations(const ModelConfig& config, const ModelPlan& plan,
                                              const Machine& machine, const PlanRequest& request);

}  // namespace lathe
