#include "kernels/cuda/sm90/latent/m64/m64_bf16_launch.cuh"

cudaError_t lathe::cuda::launch_wide_mla_bf16(const LatentParams& p, cudaStream_t stream) {
  return launch_wide<Bf16Format>(p, stream);
}
