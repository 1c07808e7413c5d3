// Random weights from a configuration alone.
#pragma once

#include <vector>

#include "model/model.h"
#include "model/weights/tensor_table.h"
#include "model/weights/weights.h"

namespace lathe {

/// Fills every tensor of the table from options.seed. The numbers depend neither on the number of
/// threads nor on the backend. A device fills matrices in its own memory. Errors: no memory on it.
Result<void> fill_dummy(const ModelConfig& config, const LoadOptions& options,
                        const std::vector<TensorSpec>& table, ModelWeights& weights);

}  // namespace lathe
