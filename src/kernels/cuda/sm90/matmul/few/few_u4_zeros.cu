// Launches grouped GEMMs of u4 weights with zeros and scales of bf16 by few bf16 tokens.
#include "kernels/cuda/sm90/matmul/few/few_launch.cuh"

cudaError_t lathe::cuda::launch_few_u4_zeros(const FewParams& p, int sms, cudaStream_t stream) {
  return launch_few_rows<U4Row<false>>(p, sms, stream);
}
