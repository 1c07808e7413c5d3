// Launches grouped GEMMs of MXFP4 weights by few bf16 tokens.
#include "kernels/cuda/sm90/matmul/few/few_launch.cuh"

cudaError_t lathe::cuda::launch_few_mxfp4(const FewParams& p, int sms, cudaStream_t stream) {
  return launch_few_rows<Mxfp4Row>(p, sms, stream);
}
