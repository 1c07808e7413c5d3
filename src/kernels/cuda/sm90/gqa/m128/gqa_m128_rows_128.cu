// gqa_m128: instance of latent rows of up to 160 elements, the first 128 of them values.
#include "kernels/cuda/sm90/gqa/m128/gqa_m128_launch.cuh"

template cudaError_t lathe::cuda::launch_gqa_rows_m128<160, 128>(const GqaParams&, cudaStream_t);
