// Launches grouped GEMMs of NVFP4 weights by few bf16 tokens.
#include "kernels/cuda/sm90/matmul/few/few_launch.cuh"

cudaError_t lathe::cuda::launch_few_nvfp4(const FewParams& p, int sms, cudaStream_t stream) {
  return launch_few_rows<Nvfp4Row>(p, sms, stream);
}
