// swap_ab: instances of mla_fp8 with f16 operands, 8, 16 and 32 M rows.
#include "kernels/cuda/sm90/latent/swap_ab/swap_ab_fp8_launch.cuh"

cudaError_t lathe::cuda::launch_swap_ab_mla_fp8(const LatentParams& p, int block_m,
                                                cudaStream_t stream) {
  return launch_swap_ab_fp8<Fp8Format>(p, block_m, stream);
}
