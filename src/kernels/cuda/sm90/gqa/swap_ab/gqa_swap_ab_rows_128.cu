// gqa_swap_ab: instances of latent rows of up to 160 elements, the first 128 of them values.
#include "kernels/cuda/sm90/gqa/swap_ab/gqa_swap_ab_launch.cuh"

template cudaError_t lathe::cuda::launch_gqa_rows_swap_ab<160, 128>(const GqaParams&, cudaStream_t);
