// The plan of a whole model: its layer groups' plans, its activations, and its weights, checked
// against the machine's memory before anything is allocated.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "attn/model_plan.h"
#include "model/config.h"

namespace lathe {

/// Whether some route expands latents with weights in f32.
bool expands(const ModelPlan& plan);

/// Bytes of a model's weights in memory: of a checkpoint of `stored` bytes, or as the configuration
/// describes them; with the copies that are made of them when they are loaded.
std::int64_t weight_bytes(const ModelConfig& config, std::optional<std::int64_t> stored,
                          bool expansion);

/// As make_model_plan(), with budget `activations`. A refusal, also, where weights, buffers and the
/// cache exceed the machine's memory, or a row exceeds --activations-budget: with what is needed,
/// what is available and the sizes that fit; where the machine's operators do not run the model.
/// `stored`: bytes of the checkpoint, if there is one.
ModelPlanResult plan_model(const ModelConfig& config, std::optional<std::int64_t> stored,
                           const Machine& machine, const PlanRequest& request,
                           const Registry& registry, std::vector<Rejection>* rejections = nullptr);

}  // namespace lathe
