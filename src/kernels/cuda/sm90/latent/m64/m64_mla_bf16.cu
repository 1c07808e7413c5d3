// m64: instance of mla_bf16.
#include "kernels/cuda/sm90/latent/m64/m64_bf16_launch.cuh"

cudaError_t lathe::cuda::launch_m64_mla_bf16(const LatentParams& p, cudaStream_t stream) {
  return launch_m64<Bf16Format>(p, stream);
}
