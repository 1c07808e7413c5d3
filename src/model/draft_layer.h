// The draft layer of DeepSeek V3, V3.2, V4 and GLM (multi-token prediction): one more layer behind
// the last one, which guesses the token after the next from a hidden state and the next token.
#pragma once

#include <cstdint>
#include <string>

#include "base/result.h"
#include "io/checkpoint.h"
#include "model/config.h"

namespace lathe {

/// Uses of the layer behind each other, and so drafts of a request, at most.
inline constexpr std::int64_t kDraftUses = 3;

/// The configuration with its draft layer running, as one more layer of a group: plans,
/// caches and weights then have it. Errors: a model of another family, or without one; several,
/// of which each would need keys of its own.
Result<ModelConfig> add_draft_layer(ModelConfig config);

/// The checkpoint in `directory`, with mtp.safetensors beside it where the draft layer runs.
/// Errors: Checkpoint::open()'s; a draft layer that runs and that no file has.
Result<Checkpoint> open_checkpoint(const std::string& directory, const ModelConfig& config);

}  // namespace lathe
