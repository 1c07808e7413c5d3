// The indexer's choice of keys on the device: quantised queries, scores, the best of them.
#pragma once

#include <cuda_runtime_api.h>

#include "base/arena.h"
#include "base/result.h"
#include "kernels/operators.h"

namespace lathe::cuda {

/// Rows go through in tiles whose scores fit op.budget_bytes. Temporaries come from `tensors`, of
/// device memory. Errors: a launch that fails.
Result<void> select_keys(const SelectKeys& op, Arena& tensors, cudaStream_t stream);

}  // namespace lathe::cuda
