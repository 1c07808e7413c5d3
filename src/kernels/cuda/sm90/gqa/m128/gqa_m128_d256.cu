// gqa_m128 for heads of 256 dimensions: its instance.
#include "kernels/cuda/sm90/gqa/m128/gqa_m128_launch.cuh"

template cudaError_t lathe::cuda::launch_gqa_m128<256>(const GqaParams&, cudaStream_t);
