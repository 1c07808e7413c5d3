// swap_ab: instances of v4_fp8, 8, 16 and 32 M rows.
#include "kernels/cuda/sm90/latent/swap_ab/swap_ab_fp8_launch.cuh"

cudaError_t lathe::cuda::launch_swap_ab_v4_fp8(const LatentParams& p, int block_m,
                                               cudaStream_t stream) {
  return launch_swap_ab_fp8<V4Fp8Format>(p, block_m, stream);
}
