// Delta-rule layers on the GPU: row by row for few rows of each request, else in chunks.
#pragma once

#include <cuda_runtime_api.h>

#include "base/arena.h"
#include "base/result.h"
#include "kernels/delta_rule.h"

namespace lathe::cuda {

/// As ops/delta_rule.h. Errors (unsupported): dk or dv above 128, other than 4 taps.
Result<void> delta_rule(const DeltaRule& op, Arena& tensors, cudaStream_t stream);

}  // namespace lathe::cuda
