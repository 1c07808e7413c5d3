// The draft layer of DeepSeek V3, V3.2, V4 and GLM (multi-token prediction): one more layer after
// the last, which predicts the token after the next from a hidden state and the next token.
#pragma once

#include <cstdint>

#include "base/result.h"
#include "model/config/config.h"

namespace lathe {

/// Most consecutive uses of the layer, and so drafts of a request.
inline constexpr std::int64_t kDraftUses = 3;

/// Enables the draft layer as one more layer of a group, so that plans, caches and weights include
/// it. Errors: a model of another family, or without a draft layer; several, each of which would
/// need keys of its own.
Result<ModelConfig> add_draft_layer(ModelConfig config);

}  // namespace lathe
