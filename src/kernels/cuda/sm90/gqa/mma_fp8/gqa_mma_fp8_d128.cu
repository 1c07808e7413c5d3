// gqa_mma_fp8: instances of head dim 128, 8 and 16 M rows.
#include "kernels/cuda/sm90/gqa/mma_fp8/gqa_mma_fp8_launch.cuh"

template cudaError_t lathe::cuda::launch_gqa_mma_fp8<128, 1>(const GqaParams&, cudaStream_t);
