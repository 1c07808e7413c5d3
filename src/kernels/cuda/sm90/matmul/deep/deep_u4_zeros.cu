// Launches GEMMs of u4 weights with zeros and scales of bf16, by 4 to 64 tokens.
#include "kernels/cuda/sm90/matmul/deep/deep_launch.cuh"

cudaError_t lathe::cuda::launch_deep_u4_zeros(const MatmulParams& p, const MatmulMaps& maps,
                                              const MatmulInstance& instance, cudaStream_t stream) {
  return launch_deep<U4Row<false>>(p, maps, instance, stream);
}
