// gqa_swap_ab: instances of latent rows of up to 320 elements, the first 256 of them values.
#include "kernels/cuda/sm90/gqa/swap_ab/gqa_swap_ab_launch.cuh"

template cudaError_t lathe::cuda::launch_gqa_rows_swap_ab<320, 256>(const GqaParams&, cudaStream_t);
