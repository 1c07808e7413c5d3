#include "kernels/cuda/sm90/latent/swap_ab/swap_ab_fp8_launch.cuh"

cudaError_t lathe::cuda::launch_narrow_mla_fp8(const LatentParams& p, int tile_lines,
                                               cudaStream_t stream) {
  return launch_narrow_fp8<Fp8Format>(p, tile_lines, stream);
}
