// Lets a backend prepare the weights that its kernels read.
#pragma once

#include <vector>

#include "base/result.h"
#include "model/load/file_source.h"
#include "model/model.h"
#include "model/weights/tensor_table.h"
#include "model/weights/weights.h"

namespace lathe {

/// Sets the weights of the table, and those made of them (uk, uv, convolutions), to what
/// options.backend makes of them. source: copies the bytes of tensors, and options.on_progress is
/// told of them; null: the bytes are in memory. Errors: the backend's (memory, a file's reading).
Result<void> prepare_weights(const LoadOptions& options, const FileSource* source,
                             const std::vector<TensorSpec>& table, ModelWeights& weights);

}  // namespace lathe
