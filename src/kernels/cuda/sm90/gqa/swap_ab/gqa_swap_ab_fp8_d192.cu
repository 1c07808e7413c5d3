// gqa_swap_ab: instances of e4m3 pages with keys of 192 dims and values of 128, 8 to 64 M rows.
#include "kernels/cuda/sm90/gqa/swap_ab/gqa_swap_ab_launch.cuh"

template cudaError_t lathe::cuda::launch_gqa_swap_ab<192, true, 128>(const GqaParams&,
                                                                     cudaStream_t);
