// How ranks share a model: its rules' input, and the bytes of every rank.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "attn/ranks.h"
#include "model/config/config.h"
#include "model/memory/share_bytes.h"
#include "plan/model_plan.h"
#include "plan/rank_plan.h"
#include "plan/split.h"

namespace lathe {

/// What the rules of sharing read of a model.
SplitModel split_model(const ModelConfig& config);
SplitModel split_model(const ModelConfig& config, ShareBytes& shares);

/// Shares the model among request.tp ranks: the split, the exchange, the weights of the fullest
/// rank without the copies made on loading, which weight_bytes() adds. One rank has it all. Errors:
/// choose_split()'s and plan_exchange()'s.
Result<RankPlan, std::vector<Reason>> plan_ranks(const ModelConfig& config, const Machine& machine,
                                                 const PlanRequest& request);
Result<RankPlan, std::vector<Reason>> plan_ranks(const ModelConfig& config, const Machine& machine,
                                                 const PlanRequest& request, ShareBytes& shares);

/// The groups with a rank's heads.
std::vector<LayerGroup> rank_groups(const ModelConfig& config, const RankPlan& ranks);

/// Least times of decode steps of 1, 64 and 256 rows with 4096 tokens of context, as far as
/// max_requests allows: the bytes of weights, experts evenly chosen, and cache, and the exchanges.
std::vector<RankFloor> decode_floors(const ModelConfig& config, const ModelPlan& plan,
                                     const Machine& machine, ShareBytes& shares);

}  // namespace lathe
