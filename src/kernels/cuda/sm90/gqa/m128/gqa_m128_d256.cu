// gqa_m128: instance of head dim 256.
#include "kernels/cuda/sm90/gqa/m128/gqa_m128_launch.cuh"

template cudaError_t lathe::cuda::launch_gqa_m128<256>(const GqaParams&, cudaStream_t);
