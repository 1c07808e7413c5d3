// The launches of latent attention on fp8 rows without rope. Those of bf16 rows without rope are
// V4's. It includes little, for nvcc's sake.
#pragma once

#include <cuda_runtime_api.h>

#include "kernels/cuda/sm90/latent/latent_params.h"

namespace lathe::cuda {

/// As those of latent_kernels.h.
cudaError_t launch_m64_mla_fp8_block_512(const LatentParams& p, cudaStream_t stream);
cudaError_t launch_swap_ab_mla_fp8_block_512(const LatentParams& p, int block_m,
                                             cudaStream_t stream);

}  // namespace lathe::cuda
