// Random weights from a configuration alone.
#pragma once

#include <vector>

#include "model/model.h"
#include "model/tensor_table.h"
#include "model/weights.h"

namespace lathe {

/// Fills every tensor of the table from options.seed; any number of threads makes the same numbers.
void fill_dummy(const ModelConfig& config, const LoadOptions& options,
                const std::vector<TensorSpec>& table, ModelWeights& weights);

}  // namespace lathe
