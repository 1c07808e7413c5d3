// swap_ab: instances of bf16 rows of 512, where the key is the value; 8, 16 and 32 M rows.
#include "kernels/cuda/sm90/latent/swap_ab/swap_ab_bf16_launch.cuh"

cudaError_t lathe::cuda::launch_swap_ab_mla_bf16_512(const LatentParams& p, int block_m,
                                                     cudaStream_t stream) {
  return launch_swap_ab<Bf16RowFormat512>(p, block_m, stream);
}
