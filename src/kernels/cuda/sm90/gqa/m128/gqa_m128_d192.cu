// gqa_m128: instance of keys of 192 dims with values of 128.
#include "kernels/cuda/sm90/gqa/m128/gqa_m128_launch.cuh"

template cudaError_t lathe::cuda::launch_gqa_m128<192, 128>(const GqaParams&, cudaStream_t);
