#include "kernels/cuda/sm90/latent/swap_ab/swap_ab_bf16_launch.cuh"

cudaError_t lathe::cuda::launch_narrow_v4_bf16(const LatentParams& p, int tile_lines,
                                               cudaStream_t stream) {
  return launch_narrow<Bf16RowFormat512>(p, tile_lines, stream);
}
