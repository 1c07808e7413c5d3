// The launches of the matmul kernels with stages of 256 columns, one per format of packed weights.
#pragma once

#include "kernels/cuda/sm90/matmul/matmul_kernels.h"

namespace lathe::cuda {

cudaError_t launch_deep_u4(const MatmulParams& p, const MatmulMaps& maps,
                           const MatmulInstance& instance, cudaStream_t stream);
cudaError_t launch_deep_u4_zeros(const MatmulParams& p, const MatmulMaps& maps,
                                 const MatmulInstance& instance, cudaStream_t stream);
cudaError_t launch_deep_u4_half(const MatmulParams& p, const MatmulMaps& maps,
                                const MatmulInstance& instance, cudaStream_t stream);
cudaError_t launch_deep_nvfp4(const MatmulParams& p, const MatmulMaps& maps,
                              const MatmulInstance& instance, cudaStream_t stream);
cudaError_t launch_deep_mxfp4(const MatmulParams& p, const MatmulMaps& maps,
                              const MatmulInstance& instance, cudaStream_t stream);

}  // namespace lathe::cuda
