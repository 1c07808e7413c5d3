#include "kernels/cuda/sm90/gqa/swap_ab/gqa_swap_ab_launch.cuh"

template cudaError_t lathe::cuda::launch_gqa_swap_ab<128, true>(const GqaParams&, cudaStream_t);
