// Random weights from a configuration alone.
#pragma once

#include <vector>

#include "model/model.h"
#include "model/tensor_table.h"
#include "model/weights.h"

namespace lathe {

/// Fills every tensor of the table from options.seed; the numbers do not depend on the number of
/// threads.
void fill_dummy(const ModelConfig& config, const LoadOptions& options,
                const std::vector<TensorSpec>& table, ModelWeights& weights);

}  // namespace lathe
