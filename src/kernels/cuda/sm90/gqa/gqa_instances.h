// Launches of the grouped-query kernels, one template instance per file.
#pragma once

#include <cuda_runtime_api.h>

#include "kernels/cuda/sm90/gqa/gqa_params.h"

namespace lathe::cuda {

/// p.block_m: 8 to gqa_swapped_rows(kHeadDim).
template <int kHeadDim, bool kFp8>
cudaError_t launch_gqa_swap_ab(const GqaParams& p, cudaStream_t stream);

/// p.block_m: 128. Head dims up to 256.
template <int kHeadDim>
cudaError_t launch_gqa_m128(const GqaParams& p, cudaStream_t stream);

}  // namespace lathe::cuda
