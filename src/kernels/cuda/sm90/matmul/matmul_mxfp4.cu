// Launches GEMMs of MXFP4 weights by bf16 tokens.
#include "kernels/cuda/sm90/matmul/matmul_launch.cuh"
#include "kernels/cuda/sm90/matmul/matmul_packed.cuh"

cudaError_t lathe::cuda::launch_matmul_mxfp4(const MatmulParams& p, const MatmulMaps& maps,
                                             const MatmulInstance& instance, cudaStream_t stream) {
  if (p.groups > 0)
    return launch_grouped_matmul<MatmulMxfp4Weights, 128>(p, maps, instance, stream);
  return launch_matmul<MatmulMxfp4Weights, 128>(p, maps, instance, stream);
}
