// Runs a layer of experts on the device, without waiting for the host.
#pragma once

#include <cuda_runtime_api.h>

#include "base/arena.h"
#include "base/result.h"
#include "kernels/moe.h"

namespace lathe::cuda {

/// Temporaries come from `tensors`, of device memory. Errors: a launch that fails; more experts
/// than kMostExperts.
Result<void> expert_layer(const ExpertLayer& op, Arena& tensors, cudaStream_t stream);

}  // namespace lathe::cuda
