// gqa_mma_fp8: instances of head dim 64, 8, 16 and 32 M rows.
#include "kernels/cuda/sm90/gqa/mma_fp8/gqa_mma_fp8_launch.cuh"

template cudaError_t lathe::cuda::launch_gqa_mma_fp8<64, 1>(const GqaParams&, cudaStream_t);
