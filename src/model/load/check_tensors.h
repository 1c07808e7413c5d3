// Checks a checkpoint against the tensor table without reading weights.
#pragma once

#include <string>

#include "base/result.h"
#include "io/checkpoint/checkpoint.h"
#include "model/config/config.h"

namespace lathe {

/// load_model()'s check of names, shapes and dtypes, from the headers alone. What only the weights'
/// bytes tell (NaN codes, scales and ids out of range) is not checked. `directory` is for messages.
/// Errors: one list of missing, unexpected and misshapen tensors, up to 16 of each.
Result<void> check_tensors(const std::string& directory, const ModelConfig& config,
                           const Checkpoint& checkpoint);

}  // namespace lathe
