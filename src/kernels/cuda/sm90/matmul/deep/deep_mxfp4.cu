// Launches GEMMs of MXFP4 weights by 4 to 64 tokens.
#include "kernels/cuda/sm90/matmul/deep/deep_launch.cuh"

cudaError_t lathe::cuda::launch_deep_mxfp4(const MatmulParams& p, const MatmulMaps& maps,
                                           const MatmulInstance& instance, cudaStream_t stream) {
  return launch_deep<Mxfp4Row>(p, maps, instance, stream);
}
