#include "kernels/cuda/sm90/latent/m64/m64_fp8_launch.cuh"

cudaError_t lathe::cuda::launch_wide_v4_fp8(const LatentParams& p, cudaStream_t stream) {
  return launch_wide_fp8<V4Fp8Format>(p, stream);
}
