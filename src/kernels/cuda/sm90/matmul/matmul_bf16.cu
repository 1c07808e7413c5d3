// Launches GEMMs of bf16 weights by bf16 tokens.
#include "kernels/cuda/sm90/matmul/matmul_bf16.cuh"
#include "kernels/cuda/sm90/matmul/matmul_launch.cuh"

cudaError_t lathe::cuda::launch_matmul_bf16(const MatmulParams& p, const MatmulMaps& maps,
                                            const MatmulInstance& instance, cudaStream_t stream) {
  if (p.groups > 0) return launch_grouped_matmul<MatmulBf16, 256>(p, maps, instance, stream);
  return launch_matmul<MatmulBf16, 256>(p, maps, instance, stream);
}
