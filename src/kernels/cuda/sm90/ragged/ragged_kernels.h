// Launches of attention over expanded keys. Includes little, to keep nvcc fast.
#pragma once

#include <cuda_runtime_api.h>

#include "kernels/cuda/sm90/ragged/ragged_params.h"

namespace lathe::cuda {

/// Fills p.bases and p.extent.
cudaError_t launch_ragged_bases(const RaggedParams& p, cudaStream_t stream);
/// Fills p.slots, from p.bases.
cudaError_t launch_ragged_slots(const RaggedParams& p, cudaStream_t stream);

/// Computes attention from p.gqa.schedule, p.bases and p.slots. launch_gqa_combine() must follow.
/// Each pair of key and value widths is an instance in its own file.
template <int kKeyDim, int kValueDim>
cudaError_t launch_ragged_m128(const RaggedParams& p, cudaStream_t stream);

}  // namespace lathe::cuda
