// m64: instance of mla_fp8_block.
#include "kernels/cuda/sm90/latent/m64/m64_fp8_launch.cuh"

cudaError_t lathe::cuda::launch_m64_mla_fp8_block(const LatentParams& p, cudaStream_t stream) {
  return launch_m64_fp8<Fp8BlockFormat>(p, stream);
}
