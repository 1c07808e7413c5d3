#include "kernels/cuda/sm90/latent/latent_narrow_launch.cuh"

cudaError_t lathe::cuda::launch_narrow_v4_bf16(const LatentParams& p, int tile_lines,
                                               cudaStream_t stream) {
  return launch_narrow<Bf16RowFormat512>(p, tile_lines, stream);
}
