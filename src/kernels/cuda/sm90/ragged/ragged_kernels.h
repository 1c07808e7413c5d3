// The launches of attention over expanded keys. It includes little, for nvcc's sake.
#pragma once

#include <cuda_runtime_api.h>

#include "kernels/cuda/sm90/ragged/ragged_params.h"

namespace lathe::cuda {

/// Makes p.bases and p.extent.
cudaError_t launch_ragged_bases(const RaggedParams& p, cudaStream_t stream);
/// Makes p.slots, by p.bases.
cudaError_t launch_ragged_slots(const RaggedParams& p, cudaStream_t stream);

/// By p.gqa.schedule, p.bases and p.slots; launch_gqa_combine() finishes it. An instance for each
/// width of keys and of values, in a file of its own.
template <int kKeyDim, int kValueDim>
cudaError_t launch_ragged_m128(const RaggedParams& p, cudaStream_t stream);

}  // namespace lathe::cuda
