// gqa_swap_ab: instances of bf16 pages, head dim 256, 8 to 32 M rows.
#include "kernels/cuda/sm90/gqa/swap_ab/gqa_swap_ab_launch.cuh"

template cudaError_t lathe::cuda::launch_gqa_swap_ab<256, false>(const GqaParams&, cudaStream_t);
