// The tensors of DeepSeek V4 (tensor_table.h).
#pragma once

#include <vector>

#include "model/weights/tensor_table.h"

namespace lathe {

/// In layer order, by their published names, for a rank with `share`. `into` outlives
/// the table.
std::vector<TensorSpec> v4_table(const ModelConfig& config, ModelWeights& into, const Share& share);

}  // namespace lathe
