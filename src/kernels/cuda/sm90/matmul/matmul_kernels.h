// The launches of the matmul kernels, one per weight format.
#pragma once

#include <cuda_runtime_api.h>

#include "kernels/cuda/sm90/matmul/matmul_params.h"

namespace lathe::cuda {

/// Which instance to launch, and with how many clusters.
struct MatmulInstance {
  int tokens = 8;               // per tile: 8, 16, 32, 64 or 128; in pairs 128 or 256, spread 192
  bool pair = false;            // clusters of two tiles; false: of p.split blocks
  bool spread = false;          // of a pair's parts of K: MatmulCluster::spread
  bool tall = false;            // MatmulCluster::tall
  bool by_tokens = false;       // MatmulCluster::tokens
  bool quad = false;            // of 128 tokens: MatmulCluster::quad, or quad_spread
  std::uint8_t warpgroups = 2;  // 4 and 1: MatmulCluster::wide and narrow
  // Where p.groups > 0, `tokens` is 8, 16, 32 or 128, in pairs 128 or 256, and p.split is 1.
  int clusters = 1;
};

cudaError_t launch_matmul_bf16(const MatmulParams& p, const MatmulMaps& maps,
                               const MatmulInstance& instance, cudaStream_t stream);
cudaError_t launch_matmul_e4m3(const MatmulParams& p, const MatmulMaps& maps,
                               const MatmulInstance& instance, cudaStream_t stream);
cudaError_t launch_matmul_e4m3_weights(const MatmulParams& p, const MatmulMaps& maps,
                                       const MatmulInstance& instance, cudaStream_t stream);
cudaError_t launch_matmul_u4(const MatmulParams& p, const MatmulMaps& maps,
                             const MatmulInstance& instance, cudaStream_t stream);
/// With zeros.
cudaError_t launch_matmul_u4_zeros(const MatmulParams& p, const MatmulMaps& maps,
                                   const MatmulInstance& instance, cudaStream_t stream);
/// With scales of f16.
cudaError_t launch_matmul_u4_half(const MatmulParams& p, const MatmulMaps& maps,
                                  const MatmulInstance& instance, cudaStream_t stream);
cudaError_t launch_matmul_mxfp4(const MatmulParams& p, const MatmulMaps& maps,
                                const MatmulInstance& instance, cudaStream_t stream);
cudaError_t launch_matmul_nvfp4(const MatmulParams& p, const MatmulMaps& maps,
                                const MatmulInstance& instance, cudaStream_t stream);

}  // namespace lathe::cuda
