// Plans a model and proves that it fits the machine's memory, before anything is allocated: its
// layer groups' plans, its activations and its weights, as one rank of those that share it has
// them.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "model/config/config.h"
#include "model/memory/share_bytes.h"
#include "plan/model_plan.h"

namespace lathe {

/// Whether some route expands latents, which needs f32 weights.
bool expands(const ModelPlan& plan);

/// Bytes of a model's weights in memory, copies made on loading included: from a checkpoint's
/// `stored` bytes, or from the configuration.
std::int64_t weight_bytes(const ModelConfig& config, std::optional<std::int64_t> stored,
                          bool expansion);
/// The fullest rank's, of the ranks that share the model; `stored` is the whole checkpoint's.
std::int64_t weight_bytes(const ModelConfig& config, std::optional<std::int64_t> stored,
                          bool expansion, const RankPlan& ranks);
/// `shares`: the model's, counted once for many plans.
std::int64_t weight_bytes(const ModelConfig& config, std::optional<std::int64_t> stored,
                          bool expansion, const RankPlan& ranks, ShareBytes& shares);

/// Plans a model and proves that it fits the machine's memory: make_model_plan() with the budget
/// `activations`. Also refuses a model that the machine's operators do not support. If weights,
/// buffers and cache exceed the memory, or rows exceed --activations-budget, the refusal gives what
/// is needed, what there is, and sizes that fit. If request.tp ranks cannot share the model, or it
/// does not fit them, the refusal gives a number of ranks that do. `stored`: bytes of the
/// checkpoint, if there is one.
ModelPlanResult fit_model(const ModelConfig& config, std::optional<std::int64_t> stored,
                          const Machine& machine, const PlanRequest& request,
                          const Registry& registry, std::vector<Rejection>* rejections = nullptr);

}  // namespace lathe
