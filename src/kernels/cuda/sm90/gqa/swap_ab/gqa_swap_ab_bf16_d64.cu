// gqa_swap_ab on bf16 pages, heads of 64 dimensions: its instances of 8 to 64 M rows.
#include "kernels/cuda/sm90/gqa/swap_ab/gqa_swap_ab_launch.cuh"

template cudaError_t lathe::cuda::launch_gqa_swap_ab<64, false>(const GqaParams&, cudaStream_t);
