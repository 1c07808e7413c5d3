#include "kernels/cuda/sm90/gqa/swap_ab/gqa_swap_ab_launch.cuh"

template cudaError_t lathe::cuda::launch_gqa_swap_ab<256, false>(const GqaParams&, cudaStream_t);
