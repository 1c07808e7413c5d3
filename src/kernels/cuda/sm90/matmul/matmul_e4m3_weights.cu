// Launches GEMMs of e4m3 weights by bf16 tokens.
#include "kernels/cuda/sm90/matmul/matmul_codes.cuh"
#include "kernels/cuda/sm90/matmul/matmul_launch.cuh"

cudaError_t lathe::cuda::launch_matmul_e4m3_weights(const MatmulParams& p, const MatmulMaps& maps,
                                                    const MatmulInstance& instance,
                                                    cudaStream_t stream) {
  if (p.groups > 0) return launch_grouped_matmul<MatmulE4m3Weights, 128>(p, maps, instance, stream);
  return launch_matmul<MatmulE4m3Weights, 128>(p, maps, instance, stream);
}
