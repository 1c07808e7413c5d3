// m64: instance of v4_fp8.
#include "kernels/cuda/sm90/latent/m64/m64_fp8_launch.cuh"

cudaError_t lathe::cuda::launch_m64_v4_fp8(const LatentParams& p, cudaStream_t stream) {
  return launch_m64_fp8<V4Fp8Format>(p, stream);
}
