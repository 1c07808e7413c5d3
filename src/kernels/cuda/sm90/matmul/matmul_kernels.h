// The product kernels' launches, one for each format of weights.
#pragma once

#include <cuda_runtime_api.h>

#include "kernels/cuda/sm90/matmul/matmul_params.h"

namespace lathe::cuda {

/// Which instance, and how many clusters of it.
struct MatmulInstance {
  int tokens = 8;     // of a tile: 8, 16, 32, 64 or 128, in pairs 128 or 256
  bool pair = false;  // clusters of two tiles, else of p.split blocks
  // Of grouped products (p.groups > 0) 8, 16, 32 or 128 tokens, in pairs 128 or 256; p.split is 1.
  int clusters = 1;
};

cudaError_t launch_matmul_bf16(const MatmulParams& p, const MatmulMaps& maps,
                               const MatmulInstance& instance, cudaStream_t stream);
cudaError_t launch_matmul_e4m3(const MatmulParams& p, const MatmulMaps& maps,
                               const MatmulInstance& instance, cudaStream_t stream);
cudaError_t launch_matmul_e4m3_weights(const MatmulParams& p, const MatmulMaps& maps,
                                       const MatmulInstance& instance, cudaStream_t stream);
cudaError_t launch_matmul_e2m1_weights(const MatmulParams& p, const MatmulMaps& maps,
                                       const MatmulInstance& instance, cudaStream_t stream);

}  // namespace lathe::cuda
