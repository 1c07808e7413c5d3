// The launches of the grouped GEMM for few tokens, one per weight format.
#pragma once

#include <cuda_runtime_api.h>

#include "kernels/cuda/sm90/matmul/few/few_params.h"

namespace lathe::cuda {

cudaError_t launch_few_mxfp4(const FewParams& p, int sms, cudaStream_t stream);
cudaError_t launch_few_nvfp4(const FewParams& p, int sms, cudaStream_t stream);
/// Without zeros, and with scales of bf16.
cudaError_t launch_few_u4(const FewParams& p, int sms, cudaStream_t stream);
/// With zeros, and with scales of bf16.
cudaError_t launch_few_u4_zeros(const FewParams& p, int sms, cudaStream_t stream);
/// With scales of f16, and zeros or none.
cudaError_t launch_few_u4_half(const FewParams& p, int sms, cudaStream_t stream);

}  // namespace lathe::cuda
