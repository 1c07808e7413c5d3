// A separate draft model, before its weights are read: whether it fits the model that it drafts
// for, and what its plan is asked for.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "base/result.h"
#include "model/config/config.h"
#include "plan/model_plan.h"
#include "plan/plan_request.h"

namespace lathe {

/// Reads the configuration in `directory`. Errors: load_model_config()'s; a vocabulary of another
/// size than the target's; layers that carry a state from token to token, as a rejected draft would
/// spoil it.
Result<ModelConfig> load_draft_config(const std::string& directory, const ModelConfig& target);

/// Holds each token of the two directories' tokenizers to stand for the same bytes. A target
/// without a tokenizer is one of tokens alone: nothing is compared. Errors: Tokenizer::load()'s;
/// the first token that differs, with both texts.
Result<void> check_same_tokens(const std::string& directory, const std::string& target);

/// Whether the draft model runs batch-invariant, too: where the target does, so that one that
/// drafts for itself draws the target's tokens. Kernels of grouped queries need not, nor can they
/// on a GPU, as a draft decides no token.
bool drafts_invariantly(const ModelConfig& config, const PlanRequest& target);

/// plan_model() of a draft model, with what a user has asked for the target as far as it concerns
/// both: as many requests, as long as both contexts allow, in chunks of as many rows. Kernels and
/// layouts are chosen for it. A refusal names the directory.
ModelPlanResult plan_draft_model(const std::string& directory, const ModelConfig& config,
                                 std::optional<std::int64_t> stored, const Machine& machine,
                                 const PlanRequest& target, const Registry& registry);

/// The target's refusal, which says where memory lacks that the draft model has taken its part.
Refusal beside_draft_model(Refusal refusal, const std::string& directory);

}  // namespace lathe
