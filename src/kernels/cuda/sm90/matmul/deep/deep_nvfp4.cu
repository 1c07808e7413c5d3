// Launches GEMMs of NVFP4 weights by 4 to 64 tokens.
#include "kernels/cuda/sm90/matmul/deep/deep_launch.cuh"

cudaError_t lathe::cuda::launch_deep_nvfp4(const MatmulParams& p, const MatmulMaps& maps,
                                           const MatmulInstance& instance, cudaStream_t stream) {
  return launch_deep<Nvfp4Row>(p, maps, instance, stream);
}
