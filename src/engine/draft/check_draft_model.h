// Checks of a separate draft model before its weights are read: whether it fits the model that it
// drafts for (the target); and its plan.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "base/result.h"
#include "model/config/config.h"
#include "plan/model_plan.h"
#include "plan/plan_request.h"

namespace lathe {

/// Reads the configuration in `directory`. Errors: load_model_config()'s; a vocabulary that differs
/// in size from the target's; layers that carry a state from token to token, which a rejected draft
/// would spoil.
Result<ModelConfig> load_draft_config(const std::string& directory, const ModelConfig& target);

/// Checks that every token means the same bytes in the tokenizers of both directories. A target
/// without a tokenizer runs on tokens alone, and nothing is compared. Errors: Tokenizer::load()'s;
/// the first token that differs, with both texts.
Result<void> check_same_tokens(const std::string& directory, const std::string& target);

/// fit_model() for a draft model. It uses the part of the target's request that concerns both: the
/// number of requests, the chunk size, and the context length, as far as the draft model's own
/// allows. Kernels and layouts are chosen for the draft model. A refusal names its directory.
ModelPlanResult plan_draft_model(const std::string& directory, const ModelConfig& config,
                                 std::optional<std::int64_t> stored, const Machine& machine,
                                 const PlanRequest& target, const Registry& registry);

/// The target's refusal. Where memory is short, the headline names the draft model, which has taken
/// its part.
Refusal beside_draft_model(Refusal refusal, const std::string& directory);

}  // namespace lathe
