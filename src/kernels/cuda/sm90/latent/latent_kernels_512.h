// Launches of latent attention on fp8 rows without RoPE, where the key is the value. (bf16 rows
// without RoPE are in latent_kernels.h.) Includes little, to keep nvcc fast.
#pragma once

#include <cuda_runtime_api.h>

#include "kernels/cuda/sm90/latent/latent_params.h"

namespace lathe::cuda {

/// As the launches in latent_kernels.h.
cudaError_t launch_m64_mla_fp8_block_512(const LatentParams& p, cudaStream_t stream);
cudaError_t launch_swap_ab_mla_fp8_block_512(const LatentParams& p, int block_m,
                                             cudaStream_t stream);

}  // namespace lathe::cuda
